package transport

import (
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// challenge adds to a refusal how the client can authenticate (RFC 6750 §3). If the
// request had no token and is Unauthenticated, the challenge names no error. If known is false,
// there is nothing at the address, so the challenge points to no metadata.
func (x *exchange) challenge(known bool, err error) {
	scheme, _, _ := strings.Cut(x.r.Header.Get("Authorization"), " ")
	tried := strings.EqualFold(scheme, "Bearer")
	code := storage.CodeOf(err)
	value := ""
	switch {
	case x.opts.SignIn != nil && known:
		value = x.opts.SignIn.Challenge(addressOf(x.r, x.r.URL.Path), tried, err)
	case code == storage.Unauthenticated && tried:
		value = `Bearer error="invalid_token"`
	case code == storage.Unauthenticated:
		value = "Bearer"
	case code == storage.Invalid:
		value = `Bearer error="invalid_request"`
	}
	if value != "" {
		x.w.Header().Set("WWW-Authenticate", value)
	}
}

// permit calls [Options.permit], and adds the header WWW-Authenticate to a refusal.
func (x *exchange) permit(msgs []wire.Message) error {
	err := x.opts.permit(x.caller, addressOf(x.r, x.r.URL.Path), msgs)
	if err != nil {
		x.challenge(true, err)
	}
	return err
}

// isDiscovery reports whether a request asks how to sign in. Pages of any origin may
// ask, because the answer is public.
func (x *exchange) isDiscovery() bool {
	return x.opts.SignIn != nil && strings.Contains(x.r.URL.Path, wellKnown) && ServesHost(x.opts.AllowedHosts, x.r.Host)
}

// discovery serves the metadata of each server below [resourceMetadata]. The host as a whole has
// none: a token for the host would be good for every server. discovery serves no metadata of an
// authorization server: clients would refuse it, because the issuer in it is not this host.
func (x *exchange) discovery() error {
	h := x.w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if x.r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", methodsRead)
		h.Set("Access-Control-Allow-Headers", allowedHeaders(x.r.Header, "Accept", wire.HeaderProtocolVersion))
		h.Set("Access-Control-Max-Age", "86400")
		x.empty(http.StatusNoContent)
		return nil
	}
	nothing := refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, "there is nothing at this path; the metadata of a server is at "+resourceMetadata+"/<server>/mcp")
	if asksForCard(x.r.URL.Path) {
		nothing = noCard()
	}
	path, ours := strings.CutPrefix(x.r.URL.Path, resourceMetadata)
	server, resource, ok := split(path)
	if name, of, grouped := groupOf(path); ours && grouped && (of == "mcp" || of == "sse") && x.opts.Groups != nil {
		if _, known := x.opts.Groups(name); !known {
			return nothing
		}
		if server = "all servers"; name != "" {
			server = "the servers of " + name
		}
	} else if !ours || !ok || resource != "mcp" && resource != "sse" {
		return nothing
	} else if _, known := x.opts.Servers(server); !known {
		return nothing
	}
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		return notAllowed(methodsRead, "this method is not served here; use GET")
	}
	h.Set("Cache-Control", "public, max-age=300")
	x.json(http.StatusOK, x.opts.SignIn.Metadata(server, addressOf(x.r, path)))
	return nil
}
