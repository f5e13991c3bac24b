package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// These limit what a server may send.
const (
	maxMessage = storage.MaxBatchBytes // bytes of one message
	maxRefusal = 64 << 10              // bytes that are read of an error response
	maxEventID = 4 << 10               // bytes of an event id, which must fit into a header
	maxAhead   = 256 << 10             // bytes that a server may send on a stream while its client is asked a question
)

// A request that a busy server refuses is sent up to busyTries times, if the server asks to wait for at
// most busyWait before the next try.
const (
	busyTries = 3
	busyWait  = 10 * time.Second
)

// conversation is the response to one HTTP request: an event stream, or messages in JSON, which
// are read as events too.
type conversation struct {
	events   chan wire.SSE // closed at the end of the response
	ended    error         // why events was closed; valid once it is closed
	failed   bool          // ended is the error of the HTTP request itself; valid after events was closed
	mute     bool          // the response is no event stream
	single   bool          // the response answers one JSON-RPC request
	stop     func()        // ends the HTTP request
	leave    func() bool   // makes the HTTP request outlive the context that began it; false if that context has ended
	last     string        // id of the last event, "" for none
	retry    time.Duration // how long the server wants its client to wait before it resumes
	flow     *flow
	endpoint *url.URL // where messages are posted, for HTTP+SSE; nil for the server's URL
}

// next returns the next event. Its error is errLost at the end of the stream.
func (t *conversation) next(ctx context.Context) (wire.SSE, error) {
	select {
	case e, ok := <-t.events:
		return t.took(e, ok)
	default:
	}
	select {
	case e, ok := <-t.events:
		return t.took(e, ok)
	case <-ctx.Done():
		return wire.SSE{}, ctx.Err()
	}
}

// took is the second half of next: it turns what came from the channel t.events into an event or
// an error.
func (t *conversation) took(e wire.SSE, ok bool) (wire.SSE, error) {
	if !ok && t.failed {
		return wire.SSE{}, t.ended
	}
	if !ok {
		if errors.Is(t.ended, wire.ErrEventTooLarge) {
			return wire.SSE{}, errTooLong
		}
		if t.ended != nil && !errors.Is(t.ended, io.EOF) {
			return wire.SSE{}, fmt.Errorf("%w (%w)", errLost, t.ended)
		}
		return wire.SSE{}, errLost
	}
	t.flow.ahead.Store(0)
	if len(e.ID) > maxEventID || strings.ContainsFunc(e.ID, unicode.IsControl) {
		e.ID = "" // no header can hold it, so the stream cannot be resumed there
	}
	if e.ID != "" {
		t.last = e.ID
	}
	if e.Retry > 0 {
		t.retry = e.Retry
	}
	e.Data = wire.Compact(e.Data) // the session's log keeps each event on one line
	return e, nil
}

func (t *conversation) close() { t.stop() }

// do sends one HTTP request. The response has a status below 300, and ends when ctx ends.
func (x *exchange) do(ctx context.Context, method string, to *url.URL, body []byte, header http.Header) (resp *http.Response, err error) {
	for try := 1; ; try++ {
		r, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
		if err != nil {
			return nil, errMalformed
		}
		maps.Copy(r.Header, x.header)
		maps.Copy(r.Header, header)
		r.Header.Set("Accept", wire.MediaSSE)
		if method == http.MethodPost {
			r.Header.Set("Accept", wire.MediaJSON+", "+wire.MediaSSE)
			r.Header.Set("Content-Type", wire.MediaJSON)
		}
		r.Header.Set("User-Agent", "dormouse")
		if resp, err = x.client.Do(r); err != nil {
			return nil, err
		}
		if resp.StatusCode < 300 {
			return resp, nil
		}
		if resp.StatusCode == http.StatusUnauthorized {
			for _, forget := range x.forget {
				forget()
			}
		}
		refused := read(resp)
		busy := resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable
		var no *refusal
		if errors.As(refused, &no) {
			no.headed = len(x.header) > 0
		}
		if no == nil || !busy || no.after == 0 || no.after > busyWait || try == busyTries {
			return nil, refused
		}
		if err := storage.Rest(ctx, no.after); err != nil {
			return nil, refused
		}
	}
}

// read returns the error of a response whose status is 300 or more. It is a *refusal if the
// status says that the request did not run.
func read(resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // an incomplete body still helps to explain the error
	no := &refusal{status: resp.StatusCode, asks: resp.Header.Get("Www-Authenticate")}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		no.after = max(time.Duration(min(seconds, 24*3600))*time.Second, time.Millisecond)
	} else if at, err := http.ParseTime(resp.Header.Get("Retry-After")); err == nil {
		no.after = max(time.Until(at), time.Millisecond)
	}
	if e := wire.Lookup(body, "error"); e != nil {
		no.said, _ = wire.String(wire.Lookup(e, "message"))
		no.code = string(wire.Lookup(e, "code"))
		no.raw = body
		if len(no.said) > 300 {
			no.said = no.said[:300]
		}
	}
	if resp.StatusCode >= 500 && resp.StatusCode != http.StatusServiceUnavailable && no.raw == nil {
		return fmt.Errorf("it answered with HTTP %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	// Some servers answer 400 for a session that they do not know. One that has been upgraded may no longer
	// speak the version of the session.
	said := bytes.ToLower(body)
	no.first = resp.StatusCode == http.StatusNotFound && (no.code == "" || no.code == "-32001" || bytes.Contains(said, []byte("session"))) ||
		resp.StatusCode == http.StatusBadRequest && (bytes.Contains(said, []byte("session")) || bytes.Contains(said, []byte("protocol version")))
	return no
}

// ask posts a request, and returns its response as a conversation.
func (x *exchange) ask(ctx context.Context, raw []byte, header http.Header) (*conversation, error) {
	return x.stream(ctx, http.MethodPost, x.url, raw, header)
}

// asking is ask, but does not wait for the headers of the response. A server may send them only
// after its client has answered a question on another stream. If ask fails, [conversation.next]
// returns the error.
func asking(ctx context.Context, x *exchange, raw []byte) *conversation {
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	t := &conversation{events: make(chan wire.SSE), stop: stop, leave: context.AfterFunc(ctx, stop), single: true, flow: &flow{}}
	from := *x // a copy, because ask may change its link
	from.flow = t.flow
	go func() {
		defer close(t.events)
		talk, err := from.ask(own, raw, from.sessionHeader())
		if err != nil {
			t.failed, t.ended = true, err
			return
		}
		defer talk.close()
		for e := range talk.events {
			select {
			case t.events <- e:
			case <-own.Done():
				t.ended = own.Err()
				return
			}
		}
		t.ended, t.failed = talk.ended, talk.failed
	}()
	return t
}

// stream sends an HTTP request, and returns its response as a conversation. The conversation
// ends with ctx, unless its leave was called.
func (x *exchange) stream(ctx context.Context, method string, to *url.URL, raw []byte, header http.Header) (*conversation, error) {
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	t := &conversation{events: make(chan wire.SSE), stop: stop, leave: context.AfterFunc(ctx, stop), single: method == http.MethodPost, flow: cmp.Or(x.flow, &flow{})}
	resp, err := x.do(own, method, to, raw, header) //nolint:bodyclose // readEvents and readJSON close it
	if err != nil {
		stop()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // "" is handled as JSON
	if id := resp.Header.Get(wire.HeaderSessionID); id != "" && validSession(id) {
		x.link.Session = id
	}
	if kind == wire.MediaSSE {
		go t.readEvents(own, resp.Body)
		return t, nil
	}
	t.mute = true
	t.readJSON(resp)
	return t, nil
}

// validSession reports whether a session id may stand in a header.
func validSession(id string) bool {
	return len(id) <= 1024 && !strings.ContainsFunc(id, func(c rune) bool { return c < 0x21 || c > 0x7e })
}

func (t *conversation) readEvents(ctx context.Context, body io.ReadCloser) {
	defer func() { _ = body.Close() }()
	defer close(t.events)
	for r := wire.NewSSEReader(limited{t.flow, body}, maxMessage); ; {
		e, err := r.Next()
		if err != nil {
			t.ended = err
			return
		}
		for _, e := range straight(e) {
			select {
			case t.events <- e:
			case <-ctx.Done():
				t.ended = ctx.Err()
				return
			}
		}
	}
}

// flow counts the bytes that come in on the stream of a conversation.
type flow struct {
	ahead atomic.Int64 // bytes that came in since next returned an event
	kept  atomic.Bool  // the server has asked a question, and nobody reads events until the client has answered
}

// limited reads a stream. Read fails if more than maxAhead bytes come in while the client is
// asked.
type limited struct {
	*flow
	body io.Reader
}

func (l limited) Read(p []byte) (int, error) {
	n, err := l.body.Read(p[:min(len(p), maxAhead/4)]) // reads are small, because one may go beyond an event
	if l.ahead.Add(int64(n)) > maxAhead && l.kept.Load() {
		return 0, errAhead
	}
	return n, err
}

// errAhead is the error of a stream on which too much came in while the client was asked.
var errAhead = errors.New("it sent too much while its client was asked")

// readJSON reads a response that is one message, a batch, or nothing.
func (t *conversation) readJSON(resp *http.Response) {
	defer func() { close(t.events) }() // the channel is replaced below
	defer t.stop()
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage+1))
	if err == nil && len(body) > maxMessage {
		err = wire.ErrEventTooLarge
	}
	if err != nil {
		t.ended = err
		return
	}
	var all []wire.SSE
	var wrong error
	wire.Hear(body, func(m wire.Message, raw []byte, err error) {
		if err != nil {
			if wrong == nil {
				wrong = newUnreadable(raw, err)
			}
			return
		}
		all = append(all, wire.SSE{Data: m.Raw})
	})
	if len(all) == 0 && wrong != nil {
		t.failed, t.ended = true, wrong
		return
	}
	t.events = make(chan wire.SSE, len(all))
	for _, e := range all {
		t.events <- e
	}
}

// tell posts a notification, or the answer to a question of the server. t is the stream of the
// server if it speaks HTTP+SSE; otherwise t may be nil.
func (x *exchange) tell(ctx context.Context, t *conversation, raw []byte) error {
	to := x.url
	if t != nil && t.endpoint != nil {
		to = t.endpoint
	}
	return post(ctx, x, to, raw, x.sessionHeader())
}

// post posts a message for which the server sends no message back.
func post(ctx context.Context, x *exchange, to *url.URL, raw []byte, header http.Header) error {
	resp, err := x.do(ctx, http.MethodPost, to, raw, header)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxRefusal)) // so that the connection can be used again
	_ = resp.Body.Close()                                             // the body was read
	return nil
}

// sessionHeader returns the headers that name the session and its protocol version.
func (x *exchange) sessionHeader() http.Header {
	h := http.Header{}
	if x.link.Session != "" {
		h.Set(wire.HeaderSessionID, x.link.Session)
	}
	if v := x.link.Version; v != "" && v != wire.V20241105 && v != wire.V20250326 {
		h.Set(wire.HeaderProtocolVersion, v)
	}
	return h
}
