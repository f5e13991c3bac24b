package sessions

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A client may give a tools/call an idempotency key, and then repeat the call with the same key. The
// first request with the key writes a durable value and executes the call. The value names the session
// and the stream in which the answer will be. A later request finds the value and waits for the answer,
// which the log keeps as long as the value lives.
//
// The value must be written before the call is executed. If the value came later, and
// instance and box died after the execution, a repeat would execute the call again.
//
// The [storage.Item] of a call cannot replace the value: a repeat may come in another session, and
// would have to look for the item under another key.

// MaxKey bounds an idempotency key, in bytes.
const MaxKey = 255

// minKeyLife is the shortest time for which a client may ask to keep its key.
const minKeyLife = time.Minute

// DataUnsent is the member of an error's data that is true if the request was certainly not
// executed. A repeat with the same idempotency key is executed.
const DataUnsent = "notExecuted"

// once is the idempotency key of a tools/call.
type once struct {
	manager *Manager
	key     func(round int) storage.ValueKey
	round   int
	hash    []byte // hash of the tool and its arguments
	life    time.Duration
	mine    *begun // the value that this request has written; nil if it has written none
}

// begun is the durable value of a key: where the answer to the call will be.
type begun struct {
	Session storage.ID       `json:"s"`
	Stream  storage.StreamID `json:"d"`
	Hash    []byte           `json:"h"` // hash of the tool and its arguments
	Request json.RawMessage  `json:"r"` // id of the first request, which is also the id of the answer in the stream
	At      time.Time        `json:"t"`
}

type keyed struct{}

// WithKey returns a context with the idempotency key of a tools/call, from the request's header
// [wire.HeaderIdempotencyKey]. An empty header gives no key.
func WithKey(ctx context.Context, header string) context.Context {
	if header == "" {
		return ctx
	}
	return context.WithValue(ctx, keyed{}, header)
}

// onceOf returns the idempotency key of the tools/call in msgs, nil if there is none. round is
// [Client.Round]. A *[wire.Error] is returned if the key is not valid.
func (u *use) onceOf(ctx context.Context, round int, batch bool, msgs ...wire.Message) (*once, error) {
	for _, m := range msgs {
		if m.Kind != wire.Request || m.Method != wire.MethodToolsCall {
			continue
		}
		key, err := keyOf(ctx, m.Params)
		switch {
		case err != nil:
			return nil, err
		case key == "":
			continue
		case batch:
			return nil, badKey("a call with a key must not be in a batch; send it by itself")
		}
		life, err := u.manager.limits.keyLife(m.Params)
		if err != nil {
			return nil, err
		}
		hash, err := callHash(m.Params)
		if err != nil {
			return nil, err
		}
		name := func(round int) storage.ValueKey { return keyName(u.caller, key, round) }
		return &once{manager: u.manager, key: name, round: round, hash: hash, life: life}, nil
	}
	return nil, nil
}

// keyOf returns the idempotency key in the header, params or _meta of a call, "" if there is none.
func keyOf(ctx context.Context, params json.RawMessage) (string, error) {
	key, _ := ctx.Value(keyed{}).(string)
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	if ctx.Value(keyed{}) != nil && key == "" {
		return "", badKey("the key is empty")
	}
	for _, raw := range []json.RawMessage{wire.Lookup(params, "idempotencyKey"), wire.Lookup(params, "_meta", wire.MetaIdempotencyKey)} {
		if raw == nil {
			continue
		}
		in, ok := wire.String(raw)
		if !ok || in == "" || key != "" && in != key {
			return "", badKey("the key is not a string, or the header, params and _meta of the call have different ones")
		}
		key = in
	}
	if len(key) > MaxKey || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", badKey(fmt.Sprintf("the key has %d bytes or a control character; use at most %d bytes, such as a UUID", len(key), MaxKey))
	}
	return key, nil
}

// keyLife returns how long the key of a call is kept, as its _meta asks.
func (l Limits) keyLife(params json.RawMessage) (time.Duration, error) {
	raw := wire.Lookup(params, "_meta", wire.MetaIdempotencyLife)
	if raw == nil {
		return l.EventAge, nil
	}
	n, ok := wire.Integer(raw)
	if most := l.EventAge.Milliseconds(); !ok || n < min(minKeyLife.Milliseconds(), most) || n > most {
		return 0, badKey(fmt.Sprintf("_meta[%q] must be a number from %d to %d", wire.MetaIdempotencyLife, min(minKeyLife.Milliseconds(), most), most))
	}
	return time.Duration(n) * time.Millisecond, nil
}

func badKey(text string) error { return keyError("idempotency_key_invalid", text) }

// keyError returns the error that refuses a call for its key. kind is a type of the draft SEP-3182.
func keyError(kind, text string) *wire.Error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: "idempotency key: " + text, Data: map[string]string{"type": kind}}
}

// KeyInUse is the value of "type" in the data of the error [StillRunning].
const KeyInUse = "idempotency_key_in_progress"

// StillRunning returns the error for a tools/call with an idempotency key whose response cannot be
// held until the end of the call.
func StillRunning() *wire.Error {
	return keyError(KeyInUse, "the call is still running; repeat it with the same key")
}

// keyName returns the store's key for the durable value of a call. It has a hash of the client's key,
// because the client's key may be a secret.
func keyName(c Caller, key string, round int) storage.ValueKey {
	of := hashOf(sha256.Size, fmt.Appendf(nil, "call %q %q %q %q %d", c.Tenant, c.Principal, c.Server.Name, key, round))
	return storage.ValueKey{Scope: storage.ValueOfPrincipal, Of: of, Name: "call with a key"}
}

// callHash returns a hash of the tool and the arguments of a call. The order of members, white
// space and escapes make no difference.
func callHash(params json.RawMessage) ([]byte, error) {
	arguments := any(map[string]any{})
	if raw := wire.Lookup(params, "arguments"); raw != nil {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&arguments); err != nil {
			return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: "the arguments cannot be read"}
		}
	}
	same, err := json.Marshal([]any{tool(params), arguments})
	if err != nil {
		return nil, err // what was decoded can always be encoded
	}
	sum := sha256.Sum256(same)
	return sum[:], nil
}

// newStream returns the name of a new stream for a call. For a call with a key, when o is not nil, the log
// keeps the end of the stream until it expires.
func (o *once) newStream() storage.StreamID {
	if o == nil {
		return storage.NewStreamID()
	}
	return storage.NewKeptStreamID()
}

// release makes a key free for a repeat, because the call was certainly not executed and will not
// be. It ends the call in the log with an error that has [DataUnsent], unless the log already has
// an end. o may be nil.
func (o *once) release(ctx context.Context) {
	if o == nil || o.mine == nil {
		return
	}
	_ = o.mine.settle(context.WithoutCancel(ctx), o.manager, &wire.Error{
		Code: wire.CodeInternal, Message: "the call was not executed; send it again", Data: map[string]bool{DataUnsent: true},
	}) // after an error, a repeat gets the answer that the outcome is unknown
}

// settle ends a call in the log with an error, unless the log has its end.
func (call begun) settle(ctx context.Context, h *Manager, why *wire.Error) error {
	a := storage.Address{Session: call.Session, Stream: call.Stream, Requests: []json.RawMessage{call.Request}}
	return h.out.Fail(ctx, a, why, time.Now().Add(h.limits.EventAge))
}

// refuses reports whether a backend that returned err has certainly not taken the message.
func refuses(err error) bool {
	switch storage.CodeOf(err) {
	case storage.Invalid, storage.TooLarge, storage.Busy, storage.Forbidden, storage.NotFound:
		return true
	default:
		return false
	}
}

// reserve writes the durable value for the key of d, and returns nil: this request executes the
// call. If an earlier request has written the value, reserve returns a Call that waits for the answer
// to that request.
//
// Cost: one write. For a repeat also one read, or three if the call has other events than its end.
//
// Errors: *[wire.Error] if the key was used for another tool or other arguments; Unavailable.
func (u *use) reserve(ctx context.Context, d Delivery) (*Call, error) {
	o := d.once
	now := time.Now()
	mine := begun{Session: u.session.ID, Stream: d.Stream, Hash: o.hash, Request: d.Requests[0], At: now}
	data, err := json.Marshal(mine)
	if err != nil {
		return nil, err // an id is valid JSON, so this cannot fail
	}
	v := storage.Value{Key: o.key(o.round), Data: data, Expires: now.Add(o.life)}
	if o.round > 0 {
		first, err := u.manager.store.LoadValue(ctx, o.key(0))
		if storage.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil {
			v.Expires = first.Expires // a later call with this key has rounds of its own
		}
	}
	for {
		old, err := u.manager.store.SaveValue(ctx, v)
		if err == nil {
			o.mine = &mine
			return nil, nil
		}
		if !errors.Is(err, storage.Conflict) {
			return nil, err
		}
		if v.Rev = 0; old.Rev == 0 {
			continue // the value has just expired, so try again
		}
		var first begun
		if err := json.Unmarshal(old.Data, &first); err != nil {
			return nil, storage.Errorf(storage.Internal, "the record of a key is damaged").Because(err)
		}
		switch {
		case first.Stream == d.Stream: // an earlier try of this write, whose answer was lost
			o.mine = &mine
			return nil, nil
		case !bytes.Equal(first.Hash, o.hash):
			return nil, keyError("idempotency_key_conflict", "it was used for another call; use a new key for other arguments")
		}
		call, unsent, err := u.join(ctx, d, first, o.round)
		if call != nil || err != nil {
			return call, err
		}
		if unsent {
			v.Rev = old.Rev
		}
	}
}

// join returns a Call that waits for the answer to an earlier request with the same key. first is the
// value that the earlier request wrote in this round. If a later round has begun, its answer is that of
// the call. If unsent is true, the earlier request was certainly not executed, call is nil, and this
// request may be executed.
func (u *use) join(ctx context.Context, d Delivery, first begun, round int) (call *Call, unsent bool, err error) {
	h, c, s := u.manager, u.caller, u.session
	ended, end, err := first.end(ctx, h.store)
	if err != nil {
		return nil, false, err
	}
	call = &Call{manager: h, session: first.Session, stream: first.Stream, begun: time.Now(), once: d.once, repeat: true}
	j := &joined{manager: h, call: first, as: d.Requests[0], modern: s.Transport == storage.Modern}
	j.of = storage.Session{ID: first.Session, Server: c.Server.Name, Tenant: c.Tenant, Principal: c.Principal}
	if ended {
		raw := end
		if raw == nil {
			raw = j.forgotten()
		}
		if string(wire.Lookup(raw, "error", "data", DataUnsent)) == "true" {
			return nil, true, nil
		}
		if asksFor(raw) {
			next, err := h.store.LoadValue(ctx, d.once.key(round+1))
			if storage.IgnoreNotFound(err) != nil {
				return nil, false, err
			}
			if err == nil && json.Unmarshal(next.Data, &first) == nil {
				if call, unsent, err := u.join(ctx, d, first, round+1); !unsent {
					return call, false, err
				}
			}
			if !j.modern {
				return nil, false, StillRunning()
			}
		}
		call = h.readyCall(j.own(raw))
		call.stream, call.once, call.repeat = d.Stream, d.once, true
		return call, false, nil
	}
	call.tracker, call.status = j, Status{Accepted: true, Next: call.begun.Add(time.Second)}
	if !j.modern || first.Session != s.ID {
		// The first request came from a client of another kind or session. This client gets only
		// the answer: the other events have ids and questions that it cannot use.
		call.joined, call.session, call.stream = j, s.ID, d.Stream
	}
	return call, false, nil
}

// end reports whether a call has ended, and returns its last event, nil if the log no longer has it.
func (call begun) end(ctx context.Context, store storage.Store) (ended bool, end []byte, err error) {
	page, err := store.Read(ctx, call.Session, call.Stream, 0, 1)
	if err == nil && !page.Final() && (len(page.Events) > 0 || page.Gap) {
		var tail storage.Tail
		if tail, err = store.Tail(ctx, call.Session, call.Stream); err != nil || !tail.Final {
			return false, nil, err
		}
		ended = true
		page, err = store.Read(ctx, call.Session, call.Stream, tail.Last-1, 1)
	}
	if err == nil && page.Final() {
		return true, page.Events[len(page.Events)-1].Raw, nil
	}
	return ended, nil, err
}

// joined is the Tracker of a request that waits for the answer to an earlier one with the same key.
type joined struct {
	manager *Manager
	call    begun           // the stored value of the earlier request
	of      storage.Session // session of the earlier request, with only the fields that Backend.Track uses
	as      json.RawMessage // id of this request, which replaces the id of the earlier one in the answer
	modern  bool            // the client of this request is modern
}

// asksFor reports whether an answer asks a modern client for something. No other client can use it.
func asksFor(raw []byte) bool {
	kind, _ := wire.String(wire.Lookup(raw, "result", "resultType"))
	return kind == wire.ResultInputRequired
}

// own returns the answer to the earlier request as the answer to this one.
func (j *joined) own(raw []byte) []byte {
	out, _ := wire.Replace(raw, j.as, "id")
	if result := wire.Lookup(out, "result"); !j.modern && result != nil {
		out, _ = wire.Replace(out, plainList(result), "result")
	}
	return out
}

func (j *joined) forgotten() []byte {
	return wire.ErrorResponse(j.as, &wire.Error{Code: wire.CodeOutcomeUnknown, Message: "the call was executed, and its answer is not kept any more"})
}

// Check implements [Tracker]. It does the work of the instance that got the earlier request
// and may be gone.
func (j *joined) Check(ctx context.Context) (Status, error) {
	tracker, err := j.manager.backend.Track(ctx, j.of, j.call.Stream)
	if err == nil {
		status, err := tracker.Check(ctx)
		status.Accepted = true
		return status, err
	}
	soon := Status{Accepted: true, Next: time.Now().Add(time.Second)}
	// A call of this age that has neither a [storage.Item] nor an end in the log was lost with its
	// instance or box.
	undecided := acceptBy + 5*time.Second
	if !errors.Is(err, storage.NotFound) || time.Since(j.call.At) < undecided {
		return soon, storage.IgnoreNotFound(err)
	}
	return soon, j.call.settle(ctx, j.manager, &wire.Error{
		Code: wire.CodeOutcomeUnknown, Message: "whether the call was executed is not known: what executed it has ended without an answer",
	})
}

// joinEnd waits for the end of the earlier call, and returns it as the only event. After
// acceptBy it returns [StillRunning].
func (c *Call) joinEnd(ctx context.Context) ([]storage.Event, error) {
	j, end := c.joined, c.begun.Add(acceptBy)
	for {
		page, err := c.manager.store.Wait(ctx, j.call.Session, j.call.Stream, c.after, earlier(end, c.status.Next))
		if err != nil {
			return nil, err
		}
		if n := len(page.Events); n > 0 {
			last := page.Events[n-1]
			c.after = last.Index
			if last.Final {
				if c.done = true; !j.modern && asksFor(last.Raw) {
					return nil, StillRunning()
				}
				return []storage.Event{{Raw: j.own(last.Raw), Final: true}}, nil
			}
			continue
		}
		now := time.Now()
		if !now.Before(end) {
			return nil, StillRunning()
		}
		if !now.Before(c.status.Next) {
			if c.status, err = j.Check(ctx); err != nil {
				return nil, err
			}
		}
	}
}
