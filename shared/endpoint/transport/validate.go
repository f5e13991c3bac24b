package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// The ladder is the list of checks in their order, with the answer of each. The session
// is looked up last, so that a request that can never succeed wakes nothing.
//
//	Host, Origin                            403         admit
//	GET from a page that reads no stream    403         streams
//	OPTIONS                                 204         preflight
//	path                                    404 -32000  exchange.route
//	method                                  405 -32000
//	authentication                          401 -32000
//	right to use the server                 403 -32000
//	server                                  404 -32000
//	Accept                                  406 -32000  exchange.messages
//	Content-Type                            415 -32000  contentType
//	size of the body                        413 -32600  body
//	JSON                                    400 -32700  wire.ParseBody
//	JSON-RPC                                400 -32600
//	modern era                              its own list, see serveModern
//	initialize in a batch                   400 -32600  checkMessages
//	initialize with the id of a session     400 -32600
//	version that is not known               400 -32000, or -32022 if it is newer
//	batch, in a version that has none       400 -32600
//	no session id                           400 -32000  sessionID
//	too many messages, or ids too long      413 -32600  sessions.Manager
//	no such session                         404 -32001

func takesStreams(x *exchange) bool { return accepts(x.r.Header.Values("Accept"), wire.MediaSSE) }

// streams refuses a GET from a client that follows no event stream, because the response would be held
// open. For an image in a page of another site, a browser sends a GET without an Origin. A program may
// leave out Accept. Only a GET of /<server>/mcp without a session needs it: a mere probe would open a
// session of HTTP+SSE.
func (x *exchange) streams() error {
	h := x.r.Header
	site, dest := h.Get("Sec-Fetch-Site"), h.Get("Sec-Fetch-Dest")
	foreign := site == "cross-site" || site == "same-site"
	if h.Get("Origin") == "" && (foreign || dest != "" && dest != "empty") {
		return refusal(http.StatusForbidden, storage.Invalid, wire.CodeServer, "an event stream is for a client that follows it; open it with fetch or EventSource from a page that may call")
	}
	accept := h.Values("Accept")
	looks := strings.HasSuffix(strings.TrimSuffix(x.r.URL.Path, "/"), "/mcp") && h.Get(wire.HeaderSessionID) == "" && h.Get(wire.HeaderProtocolVersion) == ""
	if looks && !named(accept, wire.MediaSSE) || len(accept) > 0 && !accepts(accept, wire.MediaSSE) {
		return notAcceptable(wire.MediaSSE)
	}
	return nil
}

func notAcceptable(wanted ...string) error {
	return refusal(http.StatusNotAcceptable, storage.Invalid, wire.CodeServer,
		"the client must accept "+strings.Join(wanted, " and ")+"; name all of it in one Accept header")
}

// named reports whether Accept names a media type in full, not by a wildcard.
func named(headers []string, media string) bool { return slices.Contains(accepted(headers), media) }

func accepts(headers []string, media string) bool {
	family, _, _ := strings.Cut(media, "/")
	return slices.ContainsFunc(accepted(headers), func(name string) bool {
		return name == media || name == family+"/*" || name == "*/*"
	})
}

// accepted returns the media types in Accept, without those that q=0 refuses.
func accepted(headers []string) (names []string) {
	for _, item := range strings.Split(strings.Join(headers, ","), ",") {
		// A malformed parameter is an error, but the name is still valid.
		name, params, _ := mime.ParseMediaType(item)
		if q := params["q"]; q == "" || strings.Trim(q, "0.") != "" {
			names = append(names, name)
		}
	}
	return names
}

func (x *exchange) contentType() error {
	name, params, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	charset := params["charset"]
	if err != nil || name != wire.MediaJSON || charset != "" && !strings.EqualFold(strings.ReplaceAll(charset, "-", ""), "utf8") {
		return refusal(http.StatusUnsupportedMediaType, storage.Invalid, wire.CodeServer, "the body must be JSON in UTF-8; send Content-Type: application/json")
	}
	return nil
}

// body reads the body. MaxBody limits its size before and after unpacking. body leaves out a byte
// order mark.
func (x *exchange) body() ([]byte, error) {
	x.read = true
	most := x.opts.MaxBody
	tooLarge := storage.Errorf(storage.TooLarge, "the body is larger than %d bytes; send less at once", most)
	if x.r.ContentLength > most {
		return nil, tooLarge
	}
	in := io.Reader(x.r.Body)
	switch coding := strings.ToLower(strings.Join(x.r.Header.Values("Content-Encoding"), ",")); coding {
	case "", "identity":
	case "gzip", "x-gzip":
		unpacked, err := unpack(in)
		if err != nil {
			return nil, brokenOff(err)
		}
		in = unpacked
	default:
		x.w.Header().Set("Accept-Encoding", "gzip")
		return nil, refusal(http.StatusUnsupportedMediaType, storage.Invalid, wire.CodeServer,
			"the Content-Encoding "+wire.Clip(coding)+" is not read here; send the body with gzip or without one")
	}
	body, err := io.ReadAll(io.LimitReader(in, most+1))
	switch {
	case err != nil:
		return nil, brokenOff(err)
	case int64(len(body)) > most:
		return nil, tooLarge
	}
	if packed, ok := x.r.Body.(interface{ Unpacked(bytes int) }); ok {
		packed.Unpacked(len(body)) // tells the real size to the limiter of memory, which knows only the packed size
	}
	return bytes.TrimPrefix(body, []byte("\ufeff")), nil
}

func brokenOff(cause error) error {
	return storage.Errorf(storage.Invalid, "the body broke off, or is not what its Content-Encoding says; send the request again").Because(cause)
}

// subject returns the method and id that answers and log lines are about: of the first request, or
// else of the first message. It returns no id for a response, because that is the id of a request of
// the server.
func subject(msgs []wire.Message) (method string, id json.RawMessage) {
	if len(msgs) == 0 {
		return "", nil
	}
	first := msgs[max(0, slices.IndexFunc(msgs, func(m wire.Message) bool { return m.Kind == wire.Request }))]
	if first.Kind == wire.Response {
		return first.Method, nil
	}
	return first.Method, first.ID
}

// named checks the form of a session id that a client sent, and makes it the session of the request.
func (x *exchange) named(id string) (err error) {
	x.session, err = sessions.ReadSessionID(id)
	return err
}

// isResponse reports whether a message of the server is a response, not a request or
// notification.
func isResponse(raw json.RawMessage) bool { return wire.Lookup(raw, "method") == nil }

// checkMessages does those checks in the list at the beginning of this file that need the messages.
func checkMessages(x *exchange, msgs []wire.Message, batch bool) (initialize bool, err error) {
	initialize = slices.ContainsFunc(msgs, isInitialize)
	version := x.r.Header.Get(wire.HeaderProtocolVersion)
	switch {
	case initialize && batch:
		return false, initializeInBatch()
	case initialize:
		return true, checkNoSession(x)
	}
	if err := checkVersion(x); err != nil {
		return false, err
	}
	if batch && version != "" && version != wire.V20250326 {
		return false, storage.Errorf(storage.Invalid, "version %s has no batches; send each message in a request of its own", version)
	}
	return false, nil
}

// checkNoSession refuses an initialize with the id of a session of the caller. The id of a
// session that is gone does not count, because some clients keep it.
func checkNoSession(x *exchange) error {
	id := x.r.Header.Get(wire.HeaderSessionID)
	if id == "" {
		return nil
	}
	err := x.named(id)
	if err == nil {
		_, _, err = x.opts.Host.Load(x.ctx(), x.caller, x.session)
	}
	switch x.session = ""; {
	case errors.Is(err, storage.NotFound):
		return nil
	case err != nil:
		return err
	}
	return storage.Errorf(storage.Invalid, "initialize opens a session and must not name one; send it without %s", wire.HeaderSessionID)
}

// checkVersion checks the version header. A request without it counts as 2025-03-26.
func checkVersion(x *exchange) error {
	version := x.r.Header.Get(wire.HeaderProtocolVersion)
	switch {
	case version == "" || wire.Legacy(version):
		return nil
	case isNewer(version):
		return unsupported(version, bridge.Versions())
	}
	return refusal(http.StatusBadRequest, storage.Invalid, wire.CodeServer,
		fmt.Sprintf("%s %q is not supported; send one of %s", wire.HeaderProtocolVersion, wire.Clip(version), strings.Join(wire.LegacyVersions(), ", ")))
}

func (x *exchange) sessionID() error {
	id := x.r.Header.Get(wire.HeaderSessionID)
	if id == "" {
		return refusal(http.StatusBadRequest, storage.Invalid, wire.CodeServer, "the request names no session; send initialize, then "+wire.HeaderSessionID+" on every request")
	}
	return x.named(id)
}
