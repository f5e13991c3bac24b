package transport

import (
	"errors"
	"net"
	"net/http"
	"net/url"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// sender is who sent a request, for its log line.
type sender struct {
	who     storage.Identity // the identity; empty before authentication
	address string           // network address; "" if it is not known
	asked   string           // the server or group in the address of the request; there may be none
}

// senderOf returns the sender of a request to a server or a group.
func senderOf(r *http.Request, who storage.Identity, asked string) sender {
	address := storage.AddressOf(r.Context())
	if address == "" {
		address, _, _ = net.SplitHostPort(r.RemoteAddr)
	}
	return sender{who, address, asked}
}

// askedBy returns the server or group that the path of a request names.
func askedBy(path string) string {
	if group, _, ok := groupOf(path); ok {
		return groupAddress(group)
	}
	server, _, _ := split(path)
	return server
}

// askedOver returns the server or group that the query of a WebSocket names.
func askedOver(query url.Values) string {
	if server := query.Get("server"); server != "" || !query.Has("group") {
		return server
	}
	return groupAddress(groupAsked(query))
}

// caller returns the sender of a call or a refused request. For a sender that was refused
// before it had an identity, the error names the sender.
func (s sender) caller(err error) *observe.Caller {
	if who := s.who; who.Principal != "" {
		return &observe.Caller{Key: who.KeyID(), Address: s.address}
	}
	who := storage.RefusedOf(err)
	return &observe.Caller{Server: wire.Clip(s.asked), Tenant: who.Tenant, Principal: who.Principal, Key: who.KeyID(), Address: s.address}
}

// refusalOf returns why an error refuses a caller: its code, or the kind of the limit that is used
// up. It returns "" for other errors, and for a call that needs an account at a third party that
// its user has not connected.
func refusalOf(err error) string {
	_, lacks := errors.AsType[*storage.NotConnected](err)
	switch {
	case err == nil || lacks:
		return ""
	case storage.CodeOf(err) == storage.Busy:
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
