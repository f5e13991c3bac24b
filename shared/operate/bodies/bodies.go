// Package bodies keeps the bodies of calls of tools for auditors: arguments and results.
//
// A [Keeper] takes the bodies out of events before any other observer gets them. If a server has
// the setting x-dormouse.audit, the Keeper hides the server's secrets in the bodies. It encrypts
// the rest with a key of the tenant, and writes a line to a log that has nothing else. A [Reader]
// decrypts such lines.
package bodies

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

const (
	// MaxBody limits the bytes that are kept of the arguments, and of the result, of a call. Only
	// the beginning of longer ones is kept, as text.
	MaxBody = 64 << 10
	// maxRead is the length in bytes above which nothing is kept of arguments or of a result.
	maxRead = 256 << 10
	// MaxAge is how long one machine keeps bodies, and how far a search goes back.
	MaxAge = 30 * 24 * time.Hour
)

// Body is a line of the log: the arguments and the result of a call, or one of both. A [Reader] joins the
// lines of a call, whose result may come after the HTTP response, or be fetched several times.
type Body struct {
	Time      time.Time        `json:"time"`
	Role      storage.Role     `json:"role"` // keys with this role may read the body
	Tenant    string           `json:"tenant"`
	Principal string           `json:"principal,omitempty"`
	Server    string           `json:"server"`
	Tool      string           `json:"tool,omitempty"` // "" if the line has only the result
	Client    string           `json:"client,omitempty"`
	Key       string           `json:"key,omitempty"` // ID of the API key
	Session   storage.ID       `json:"session,omitempty"`
	Stream    storage.StreamID `json:"stream,omitempty"`
	Trace     string           `json:"trace,omitempty"`
	Outcome   string           `json:"outcome,omitempty"` // how the call ended: a value of observe.Event.Outcome
	Arguments json.RawMessage  `json:"arguments,omitempty"`
	Result    json.RawMessage  `json:"result,omitempty"`   // the result, or the error
	LeftOut   string           `json:"left_out,omitempty"` // what of arguments and result is not kept, and why
}

// message is the msg of each line of the log.
const message = "bodies"

// Keeper keeps the arguments and results of calls; see [Keeper.Before]. Server and Hider are
// required.
type Keeper struct {
	Server func(name string) (serversfile.Server, bool)
	// Hider returns a function that replaces the values of variables in a text, in all forms in
	// which programs print them. The argument marked has the names of variables whose values
	// are replaced even if they are short.
	Hider  func(values map[string]string, marked []string) func(text string) string
	Secret []byte       // of the deployment; the Keeper makes the keys of tenants from it
	Out    *slog.Logger // gets the lines, and nothing else. nil: nothing is kept
}

// Before returns an observer that keeps the bodies of an event, and passes the event on
// without them.
func (k *Keeper) Before(next observe.Observer) observe.Observer {
	return func(ctx context.Context, e *observe.Event) {
		k.keep(ctx, e)
		e.Said = nil
		for i := range e.Ended {
			e.Ended[i].Response = nil
		}
		if next != nil {
			next(ctx, e)
		}
	}
}

func (k *Keeper) keep(ctx context.Context, e *observe.Event) {
	if k.Out == nil || e.Tenant == "" || e.Said == nil && len(e.Ended) == 0 {
		return
	}
	s, ok := k.Server(e.Server)
	if !ok || s.Audit.Bodies == "" {
		return
	}
	b := Body{
		Time: time.Now().UTC(), Role: s.Audit.Bodies, Tenant: e.Tenant, Principal: e.Principal, Server: e.Server, Tool: e.Tool, Client: e.Client,
		Session: e.Session, Trace: e.Trace, Outcome: e.Outcome,
	}
	if e.Caller != nil {
		b.Key = e.Caller.Key
	}
	if e.Said != nil {
		b.Stream = e.Said.Stream
		k.write(ctx, e, s, b, e.Said.Arguments, bodyOf(e.Said.Response))
	}
	for _, end := range e.Ended {
		result := bodyOf(end.Response)
		if len(result) == 0 {
			continue
		}
		b.Stream, b.Outcome = end.Stream, observe.Done
		if end.Why != "" {
			b.Outcome = observe.Failed
		}
		k.write(ctx, e, s, b, nil, result)
	}
}

// bodyOf returns the result of a response, or its error; nil for no response.
func bodyOf(response json.RawMessage) json.RawMessage {
	if result := wire.Lookup(response, "result"); result != nil {
		return result
	}
	return wire.Lookup(response, "error")
}

// write writes a line, and adds its cost to the event.
func (k *Keeper) write(ctx context.Context, e *observe.Event, s serversfile.Server, b Body, arguments, result json.RawMessage) {
	if values, known := s.Secrets(); known {
		h := hider{hide: k.Hider(values, s.Box.Secrets), names: s.Audit.Redact}
		b.Arguments = h.body("arguments", arguments, &b.LeftOut)
		b.Result = h.body("result", result, &b.LeftOut)
	} else {
		b.LeftOut = "both: a secret of this server is not known here, so it cannot be hidden"
	}
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false) // otherwise <, > and & would take six bytes each
	if enc.Encode(b) != nil {
		return // does not happen: a Body has only text and valid JSON
	}
	seal, err := sealer(b.Tenant, k.Secret)
	if err != nil {
		return // the secret is too short, which other packages report
	}
	sealed := seal.SealFor([]byte(b.Server), plain.Bytes())
	if e.Spent != nil {
		e.Spent.Units.LogGB += meter.GB(int64(len(sealed)))
	}
	k.Out.LogAttrs(ctx, slog.LevelInfo, message, slog.String("tenant", b.Tenant), slog.String("server", b.Server), slog.String("sealed", sealed))
}

// sealer returns the Sealer for the bodies of a tenant, which has a key of its own.
func sealer(tenant string, secret []byte, others ...[]byte) (*storage.Sealer, error) {
	return storage.NewSealer(fmt.Sprintf("bodies of calls of %q", tenant), secret, others...)
}

// Line is a line of the log that a [Keeper] writes.
type Line struct {
	Message string `json:"msg"`
	Tenant  string `json:"tenant"`
	Server  string `json:"server"`
	Sealed  string `json:"sealed"`
}

// Query selects bodies. A text that is "" selects all.
type Query struct {
	Role            storage.Role // of the auditor's key; required
	Tenant, Server  string
	Principal, Tool string
	Servers         []string  // only bodies of these servers; nil for all
	Since           time.Time // the zero time is MaxAge ago
	Limit           int       // the largest number of bodies to return; the newest are returned
}

// Reader opens lines that a [Keeper] with the same secret has written, and joins the lines of
// one call. Add lines in the order in which the Keeper wrote them.
type Reader struct {
	query   Query
	secrets [][]byte
	sealers map[string]*storage.Sealer // by tenant
	found   []*Body
	calls   map[string]*Body // by tenant and stream
}

// NewReader returns a Reader that opens lines that were encrypted with any of the secrets.
func NewReader(q Query, secret []byte, others ...[]byte) *Reader {
	if oldest := time.Now().Add(-MaxAge); q.Since.Before(oldest) {
		q.Since = oldest
	}
	return &Reader{query: q, secrets: append([][]byte{secret}, others...), sealers: map[string]*storage.Sealer{}, calls: map[string]*Body{}}
}

// Add adds a line if the query selects it. It ignores other lines, and lines that were encrypted
// with another secret.
func (r *Reader) Add(l Line) {
	q := &r.query
	if l.Message != message || q.Tenant != "" && l.Tenant != q.Tenant || q.Server != "" && l.Server != q.Server || q.Servers != nil && !slices.Contains(q.Servers, l.Server) {
		return
	}
	of, ok := r.sealers[l.Tenant]
	if !ok {
		var err error
		if of, err = sealer(l.Tenant, r.secrets[0], r.secrets[1:]...); err != nil {
			return
		}
		r.sealers[l.Tenant] = of
	}
	plain, ok, _ := of.OpenFor([]byte(l.Server), l.Sealed)
	var b Body
	if !ok || json.Unmarshal(plain, &b) != nil || b.Role != q.Role || b.Time.Before(q.Since) {
		return
	}
	if b.Stream != "" {
		key := b.Tenant + " " + string(b.Stream)
		if first, ok := r.calls[key]; ok {
			first.join(b)
			return
		}
		r.calls[key] = &b
	}
	if r.found = append(r.found, &b); len(r.found) > 2*max(q.Limit, 1) {
		r.found = slices.Clone(r.found[len(r.found)-max(q.Limit, 1):])
		kept := map[*Body]bool{}
		for _, b := range r.found {
			kept[b] = true
		}
		maps.DeleteFunc(r.calls, func(_ string, b *Body) bool { return !kept[b] })
	}
}

// join adds what another line has about the same call.
func (b *Body) join(other Body) {
	if b.Tool == "" { // the line with the result came first
		b.Principal, b.Tool, b.Client, b.Key, b.Trace, b.Arguments = other.Principal, other.Tool, other.Client, other.Key, other.Trace, other.Arguments
	}
	if b.Result == nil && other.Result != nil || b.Outcome == "" {
		b.Result, b.Outcome = other.Result, other.Outcome
	}
	if b.LeftOut == "" {
		b.LeftOut = other.LeftOut
	}
}

// Bodies returns the bodies that were found, the newest first.
func (r *Reader) Bodies() []Body {
	q, all := &r.query, []Body{}
	for _, b := range slices.Backward(r.found) {
		if len(all) < q.Limit && (q.Principal == "" || b.Principal == q.Principal) && (q.Tool == "" || b.Tool == q.Tool) {
			all = append(all, *b)
		}
	}
	return all
}
