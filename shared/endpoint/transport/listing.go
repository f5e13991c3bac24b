package transport

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Document answers a GET about servers. The argument base is the URL of the endpoint, taken from the
// request. The argument callers has the caller once for each server that it may use, in the order of
// [Options].Names. The endpoint encodes the answer as JSON, and sends it as the type media.
type Document func(r *http.Request, base string, callers []sessions.Caller) (media string, answer any, err error)

// Listing returns a handler for a document. As for a message, the handler checks Host, Origin and
// caller, and logs the request. An error becomes {"error": text}, which is the form of the MCP registry.
func (h *HTTP) Listing(of Document) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := h.exchange(w, r)
		defer x.finish()
		if err := x.list(of); err != nil {
			p := x.failed(err)
			body, _ := json.Marshal(map[string]string{"error": p.rpc.Message}) // strings always marshal
			x.json(p.status, body)
		}
	})
}

func (x *exchange) list(of Document) error {
	if err := x.admit(); err != nil {
		return err
	}
	switch x.r.Method {
	case http.MethodOptions:
		x.preflight()
		return nil
	case http.MethodGet, http.MethodHead:
	default:
		return notAllowed(methodsRead, "this method is not served here; use GET")
	}
	may, err := x.mayUse()
	if err != nil {
		return err
	}
	if len(may) > 0 {
		x.caller = may[0]
		x.caller.Server = sessions.Server{} // the request is about no server in particular
		release, err := x.opts.admitted(x.ctx(), x.caller)
		if err != nil {
			return err
		}
		defer release()
	}
	media, answer, err := of(x.r, ownURL(x.r, ""), may)
	if err != nil {
		return err
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	x.w.Header().Set("Cache-Control", "no-store")
	x.document(http.StatusOK, media, body)
	return nil
}

// mayUse returns the caller at each server that it may use. A caller with a key for none of
// them gets an empty list. Errors: Unauthenticated, Invalid, Unavailable.
func (x *exchange) mayUse() (may []sessions.Caller, err error) {
	servers, names := x.opts.served(nil)
	if len(names) == 0 {
		return nil, nil
	}
	all, err := x.opts.Auth.Members(x.r, "", names)
	for _, server := range servers {
		who, ok := all[server.Name]
		if !ok || err != nil {
			continue
		}
		if who, err = whole(who, nil); err == nil {
			may = append(may, x.opts.caller(who, server, storage.HTTP))
		}
	}
	if errors.Is(err, storage.Forbidden) {
		return nil, nil
	}
	if errors.Is(err, storage.Unauthenticated) {
		x.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	return may, err
}
