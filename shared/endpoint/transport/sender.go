package transport

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// sender is who sent a request, for its log line.
type sender struct {
	who     storage.Identity // nobody before authentication
	address string           // of the network; "" if it is not known
	asked   string           // the server or group in the address of the request; there may be none
}

// senderOf returns the sender of a request to a server or a group.
func senderOf(r *http.Request, c sessions.Caller, asked string) sender {
	address := storage.AddressOf(r.Context())
	if address == "" {
		address, _, _ = net.SplitHostPort(r.RemoteAddr)
	}
	return sender{storage.Identity{Tenant: c.Tenant, Principal: c.Principal, Credential: c.Credential}, address, asked}
}

// askedBy returns the server or group that the path of a request names.
func askedBy(path string) string {
	if group, _, ok := groupOf(path); ok && group != "" {
		return "/g/" + group + "/mcp"
	} else if ok {
		return "/mcp"
	}
	server, _, _ := split(path)
	return server
}

// askedOver returns the server or group that the query of a WebSocket names.
func askedOver(query url.Values) string {
	if server := query.Get("server"); server != "" || !query.Has("group") {
		return server
	}
	if group := query.Get("group"); group != allServers {
		return "/g/" + group + "/mcp"
	}
	return "/mcp"
}

// attr returns the attribute caller of a line about a call or a refusal. A refused caller
// without an identity has that in the error: Bills and metrics read names of the line
// itself, which strangers must not choose.
func (s sender) attr(err error) slog.Attr {
	if who := s.who; who.Principal != "" {
		return caller(slog.String("key", keyOf(who.Credential)), slog.String("address", s.address))
	}
	who := storage.RefusedOf(err)
	return caller(slog.String("server", wire.Clip(s.asked)), slog.String("tenant", who.Tenant), slog.String("principal", who.Principal),
		slog.String("key", keyOf(who.Credential)), slog.String("address", s.address))
}

func caller(of ...slog.Attr) slog.Attr {
	return slog.Attr{Key: "caller", Value: slog.GroupValue(of...)}
}

// keyOf returns a credential that is the ID of a key; "" for that of a token, which has the
// form KIND:TEXT.
func keyOf(credential string) string {
	if strings.Contains(credential, ":") {
		return ""
	}
	return credential
}

// refusalOf returns why an error refuses a caller: its code, or the kind of the limit that
// is used up. It returns "" for other errors, and for a call that lacks what its user can
// connect.
func refusalOf(err error) string {
	var lacks *storage.NotConnected
	if err == nil || errors.As(err, &lacks) {
		return ""
	}
	if storage.CodeOf(err) == storage.Busy {
		return limitOf(err).Kind
	}
	switch problemOf(err).status {
	case http.StatusUnauthorized:
		return string(storage.Unauthenticated)
	case http.StatusForbidden:
		return string(storage.Forbidden)
	}
	return ""
}
