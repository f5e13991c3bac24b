package front

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// The ladder: what is checked, in this order, and what it is answered with. A
// session is looked up last, so that nothing wakes for a request that can never
// be right.
//
//	Host, Origin                            403         admit
//	GET of a page that cannot follow it     403         streams
//	OPTIONS                                 204         preflight
//	path                                    404 -32000  serve
//	method                                  405 -32000
//	principal                               401 -32000
//	principal of other servers              403 -32000
//	server                                  404 -32000
//	Accept                                  406 -32000  accept
//	Content-Type                            415 -32000  contentType
//	size of the body                        413 -32600  body
//	JSON                                    400 -32700  wire.ParseBody
//	JSON-RPC                                400 -32600
//	initialize with a session id            400 -32600  checkMessages
//	initialize in a batch                   400 -32600
//	modern era                              its own ladder, see modern.go
//	unsupported version                     400 -32000
//	batch in a version without              400 -32600
//	no session id                           400 -32000  sessionID
//	messages at once, ids of requests       413 -32600  host.Host
//	no such session                         404 -32001

// accept wants every one of the media types in Accept. A request without one
// promised nothing, and MCP asks for the promise.
func (x *exchange) accept(wanted ...string) error {
	for _, media := range wanted {
		if !accepts(x.r.Header.Values("Accept"), media) {
			return notAcceptable(wanted...)
		}
	}
	return nil
}

// streams says that a GET is of a client that follows an event stream. A page of
// elsewhere can have its reader's browser send one without an Origin, as for an image,
// and each would hold a function. Such a request names no event stream, and browsers say
// where it comes from.
func (x *exchange) streams() error {
	h := x.r.Header
	site, dest := h.Get("Sec-Fetch-Site"), h.Get("Sec-Fetch-Dest")
	foreign := site == "cross-site" || site == "same-site"
	if h.Get("Origin") == "" && (foreign || dest != "" && dest != "empty") {
		return refusal(http.StatusForbidden, session.Invalid, wire.CodeServer, "an event stream is for a client that follows it; open it with fetch or EventSource from a page that may call")
	}
	if !named(h.Values("Accept"), wire.MediaSSE) {
		return notAcceptable(wire.MediaSSE)
	}
	return nil
}

func notAcceptable(wanted ...string) error {
	return refusal(http.StatusNotAcceptable, session.Invalid, wire.CodeServer,
		"the client must accept "+strings.Join(wanted, " and ")+"; name all of it in one Accept header")
}

// named says that Accept has a media type by its own name.
func named(headers []string, media string) bool { return slices.Contains(accepted(headers), media) }

func accepts(headers []string, media string) bool {
	family, _, _ := strings.Cut(media, "/")
	return slices.ContainsFunc(accepted(headers), func(name string) bool {
		return name == media || name == family+"/*" || name == "*/*"
	})
}

// accepted are the names in Accept that are not refused.
func accepted(headers []string) (names []string) {
	for _, item := range strings.Split(strings.Join(headers, ","), ",") {
		// The name is there also when a parameter is malformed, which does not matter.
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
	if err != nil || name != wire.MediaJSON || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return refusal(http.StatusUnsupportedMediaType, session.Invalid, wire.CodeServer, "the body must be JSON in UTF-8; send Content-Type: application/json")
	}
	return nil
}

// bodyWithin is how long a body may take to come.
const bodyWithin = time.Minute

// body reads the body, as far as it may be.
func (x *exchange) body() ([]byte, error) {
	most := x.opts.MaxBody
	tooLarge := session.Errorf(session.TooLarge, "the body is larger than %d bytes; send less at once", most)
	if x.r.ContentLength > most {
		return nil, tooLarge
	}
	// A body that comes in one piece, as behind Lambda, has no deadline.
	deadline := http.NewResponseController(x.w)
	bounded := deadline.SetReadDeadline(time.Now().Add(bodyWithin)) == nil
	body, err := io.ReadAll(io.LimitReader(x.r.Body, most+1))
	switch {
	case err != nil:
		return nil, session.Errorf(session.Invalid, "the body broke off; send the request again").Because(err)
	case int64(len(body)) > most:
		return nil, tooLarge
	}
	if bounded {
		_ = deadline.SetReadDeadline(time.Time{}) // what could be set can be taken back
	}
	return body, nil
}

// subject is what answers and log lines are about: the first request, or else the
// first message. A response has an id of somebody else's.
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

// checkMessages is the part of the ladder that needs the messages.
func (x *exchange) checkMessages(msgs []wire.Message, batch bool) (initialize bool, err error) {
	initialize = slices.ContainsFunc(msgs, func(m wire.Message) bool {
		return m.Kind == wire.Request && m.Method == wire.MethodInitialize
	})
	version := x.r.Header.Get(wire.HeaderProtocolVersion)
	switch {
	case initialize && x.r.Header.Get(wire.HeaderSessionID) != "":
		return false, session.Errorf(session.Invalid, "initialize opens a session and must not name one; send it without %s", wire.HeaderSessionID)
	case initialize && batch:
		return false, session.Errorf(session.Invalid, "initialize must not be part of a batch; send it alone")
	case initialize:
		return true, nil
	}
	if err := x.version(); err != nil {
		return false, err
	}
	if batch && version != "" && version != wire.V20250326 {
		return false, session.Errorf(session.Invalid, "version %s has no batches; send each message in a request of its own", version)
	}
	return false, nil
}

// modernVersion says whether a message is of the era without sessions, and which
// version of it the client asks for: it names one in the message or the header,
// or calls the method that begins that era.
func modernVersion(m wire.Message, header string) (requested string, modern bool) {
	named, _ := wire.String(wire.Lookup(m.Params, "_meta", wire.MetaProtocolVersion))
	switch {
	case named != "" && !wire.Legacy(named):
		return named, true
	case isModern(header), m.Kind == wire.Request && m.Method == wire.MethodDiscover:
		return header, true
	}
	return "", false
}

// isModern says that a version is of the modern era, or newer than any we know.
func isModern(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil && version > wire.V20251125
}

// unsupportedModern sends a modern client back to initialize.
func unsupportedModern(requested string) error { return unsupported(requested, wire.LegacyVersions()) }

// unsupported tells which versions are spoken (MCP 2026-07-28, "Protocol Version
// Negotiation").
func unsupported(requested string, supported []string) error {
	p := refusal(http.StatusBadRequest, session.Invalid, wire.CodeUnsupportedVersion,
		"this protocol version is not spoken here; use one of the supported versions")
	p.rpc.Data = struct {
		Supported []string `json:"supported"`
		Requested string   `json:"requested"`
	}{supported, clip(requested)}
	return p
}

// version checks the version header. Without one a request is 2025-03-26.
func (x *exchange) version() error {
	version := x.r.Header.Get(wire.HeaderProtocolVersion)
	if version == "" || wire.Legacy(version) {
		return nil
	}
	return refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer,
		fmt.Sprintf("%s %q is not supported; send one of %s", wire.HeaderProtocolVersion, clip(version), strings.Join(wire.LegacyVersions(), ", ")))
}

// sessionID reads the session header. What cannot be an id of ours is unknown
// without a look at the store.
func (x *exchange) sessionID() error {
	id := x.r.Header.Get(wire.HeaderSessionID)
	if id == "" {
		return refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer, "the request names no session; send initialize, then "+wire.HeaderSessionID+" on every request")
	}
	return x.named(id)
}

// named takes over a session's id as a client wrote it.
func (x *exchange) named(id string) error {
	const longest = 64
	odd := strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' || c == '/' || c == '.' })
	if odd || len(id) > longest {
		return session.Errorf(session.NotFound, "there is no such session; send initialize to open one")
	}
	x.session = session.ID(id)
	return nil
}

// isResponse tells a response from what a server says on its own account.
func isResponse(raw json.RawMessage) bool { return wire.Lookup(raw, "method") == nil }
