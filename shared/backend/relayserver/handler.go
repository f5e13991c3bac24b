package relayserver

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Handler handles the frames that runners send over the relay. Frames come in any order, and some
// come twice. A Handler trusts a frame only because of a ticket, a token or the runner's own random
// id in the frame. A Handler is safe for concurrent use.
type Handler struct{ *boxes }

// NewHandler returns a Handler. It does not check c.
func NewHandler(c Config) *Handler { return &Handler{newBoxes(c)} }

// partLife is how long the store keeps the parts of a long frame.
const partLife = 15 * time.Minute

// Frame handles one message of connection conn. It returns the answer for the same connection,
// which is the route response of API Gateway, or nil for none.
//
// Errors: Invalid for a frame that no honest runner sends. Unavailable if the frame was
// handled only in part or not at all; the runner sends the frame again.
func (h *Handler) Frame(ctx context.Context, conn string, data []byte) ([]byte, error) {
	a := &account{config: &h.Config, begun: time.Now(), conn: conn, size: len(data)}
	f, err := fromRunner(data)
	if err != nil {
		return nil, a.end(ctx, nil, nil, err)
	}
	r := runner{h: h, conn: conn, account: a}
	if whole, ok := f.(frame.Whole); ok {
		joined, err := r.whole(ctx, whole)
		if err != nil {
			return nil, a.end(ctx, whole, nil, err)
		}
		f = joined
	}
	reply, err := r.frame(ctx, f)
	return reply, a.end(ctx, f, reply, err)
}

// maxName is the longest name in bytes that a frame may have for a box, a session, a runner
// or a task. The names get into keys, records and log lines.
const maxName = 200

func fromRunner(data []byte) (frame.Frame, error) {
	f, err := frame.Decode(data)
	if err != nil {
		return nil, err
	}
	for _, name := range names(f) {
		if len(name) > maxName {
			return nil, storage.Errorf(storage.Invalid, "a relay frame of %d bytes has a name of more than %d", len(data), maxName)
		}
	}
	return f, nil
}

func names(f frame.Frame) []string {
	sender, ok := f.(frame.FromRunner)
	if !ok {
		return nil
	}
	from := sender.From()
	all := []string{string(from.Box), from.Runner}
	switch f := f.(type) {
	case frame.Hello:
		all = append(all, f.Task)
	case frame.Events:
		all = append(all, string(f.Session))
	case frame.Status:
		all = append(all, string(f.Session))
	case frame.Snapshot:
		all = append(all, f.Owner, f.Object)
	}
	return all
}

// runner is the sender of a frame: what it claims to be, and the connection that it uses.
type runner struct {
	h       *Handler
	from    frame.Sender
	conn    string
	account *account // of the current frame
}

func (r runner) frame(ctx context.Context, f frame.Frame) ([]byte, error) {
	if f, ok := f.(frame.FromRunner); ok {
		r.from = f.From()
	}
	var reply frame.Frame
	var err error
	switch f := f.(type) {
	case frame.Hello:
		reply, err = r.hello(ctx, f)
	case frame.Pull:
		reply, err = r.pull(ctx, f)
	case frame.Taken:
		err = r.mark(ctx, f.Tickets)
	case frame.Ask:
		reply, err = r.ask(ctx, f)
	case frame.Return:
		err = r.returned(ctx, f)
	case frame.Events:
		reply, err = r.events(ctx, f)
	case frame.Status:
		err = r.status(ctx, f)
	case frame.Bye:
		reply, err = r.bye(ctx, f)
	case frame.Snapshot:
		reply, err = r.snapshot(ctx, f)
	case frame.Part:
		reply, err = r.part(ctx, f)
	default:
		// A newer runner may send a type that this version does not know.
	}
	if err != nil || reply == nil {
		return nil, err
	}
	switch reply.(type) {
	case frame.Welcome, frame.Pulled, frame.ByeOK, frame.PartOK: // only the runner of the box gets these
		r.account.proven = true
	}
	encoded := frame.Encode(reply)
	if len(encoded) > frame.MaxFrame { // a welcome with many variables: it can be posted in parts, but must not be returned in parts
		return nil, r.h.post(ctx, r.conn, reply)
	}
	return encoded, nil
}

// part stores a piece of a long frame, under the number that begins the frame's name (see placeOf).
// The number is below frame.MaxTransfers, so one box cannot fill the store. Only the box's runner may
// write.
func (r runner) part(ctx context.Context, f frame.Part) (frame.Frame, error) {
	place, nonce, ok := placeOf(f.Frame)
	if !ok || f.Box == "" || f.N < 0 || f.N > frame.MaxJoined/frame.MaxPiece || len(f.Payload) > frame.MaxFrame {
		return nil, storage.Errorf(storage.Invalid, "part %d of relay frame %q is not one", f.N, f.Frame)
	}
	b, err := r.h.Store.Box(ctx, f.Box)
	if err != nil {
		return nil, err
	}
	if b.Runner == "" || b.Runner != f.Runner {
		return frame.Fenced{Link: b.Link}, nil
	}
	err = r.h.Store.PutPart(ctx, storage.Part{
		Box: f.Box, Frame: place, N: int(f.N), Data: slices.Concat([]byte(nonce), f.Payload), Expires: time.Now().Add(partLife),
	})
	return frame.PartOK{Frame: f.Frame, N: f.N}, err
}

// placeOf splits the name of a long frame, "PLACE.NONCE", and adds a newline to the nonce. The store
// keeps the pieces of the frame under place. Older pieces of another frame may still be there, so
// each piece begins with its frame's nonce.
func placeOf(name string) (place, nonce string, ok bool) {
	place, nonce, ok = strings.Cut(name, ".")
	n, err := strconv.Atoi(place)
	if !ok || err != nil || n < 0 || n >= frame.MaxTransfers || strconv.Itoa(n) != place || nonce == "" || len(nonce) > 64 {
		return "", "", false
	}
	return place, nonce + "\n", true
}

func (r runner) whole(ctx context.Context, f frame.Whole) (frame.Frame, error) {
	place, nonce, ok := placeOf(f.Frame)
	if !ok {
		return nil, storage.Errorf(storage.Invalid, "relay frame %q is not one", f.Frame)
	}
	parts, err := r.h.Store.Parts(ctx, f.Box, place)
	if err != nil {
		return nil, err
	}
	parts = slices.DeleteFunc(parts, func(p storage.Part) bool { return !bytes.HasPrefix(p.Data, []byte(nonce)) })
	if len(parts) != f.Of || f.Of == 0 {
		return nil, storage.Errorf(storage.Invalid, "relay frame %q has %d of %d parts", f.Frame, len(parts), f.Of)
	}
	size := 0
	for i, p := range parts {
		if size += len(p.Data) - len(nonce); p.N != i || size > frame.MaxJoined {
			return nil, storage.Errorf(storage.Invalid, "relay frame %q cannot be joined", f.Frame)
		}
	}
	data := make([]byte, 0, size)
	for _, p := range parts {
		data = append(data, p.Data[len(nonce):]...)
	}
	joined, err := fromRunner(data)
	if err != nil {
		return nil, err
	}
	if !joinable(joined, f.Box) {
		return nil, storage.Errorf(storage.Invalid, "relay frame %q holds a %s, or one of another box", f.Frame, frame.Clip(string(frame.Kind(joined))))
	}
	return joined, nil
}

// joinable reports whether a runner of box may send f in parts.
func joinable(f frame.Frame, box storage.BoxID) bool {
	switch f := f.(type) {
	case frame.Part, frame.Whole:
		return false
	case frame.Hello:
		return len(f.Questions) == 0 && f.Box == box
	case frame.FromRunner:
		return f.From().Box == box
	default:
		return true
	}
}

// change changes the record of the runner's box by a rule, such as those in record.go. After a
// conflict it reads the record and asks the rule again.
func (r runner) change(ctx context.Context, rule func(storage.Box) (storage.Box, decision)) (storage.Box, decision, error) {
	for {
		b, err := r.h.Store.Box(ctx, r.from.Box)
		if err != nil {
			return b, refuse, err
		}
		next, v := rule(b)
		if v != write {
			return next, v, nil
		}
		err = r.h.Store.SaveBox(ctx, next)
		if !errors.Is(err, storage.Conflict) {
			return next, v, err
		}
	}
}

// pull sends a runner the deliveries that wait in the inbox. It claims each item first, so
// that no other generation gets the item. It reads the log after the claim, because a
// repeated put may have brought back the item of a request that ended long ago.
func (r runner) pull(ctx context.Context, f frame.Pull) (frame.Frame, error) {
	b, err := r.h.Store.Box(ctx, f.Box)
	if err != nil {
		return nil, err
	}
	if b.Runner != f.Runner {
		return frame.Fenced{Link: b.Link}, nil
	}
	if b.State != storage.Awake || b.Gen != f.Gen {
		return nil, nil // the frame came after the bye of its runner
	}
	items, err := r.h.Store.Items(ctx, f.Box)
	if err != nil {
		return nil, err
	}
	reply := frame.Pulled{N: f.N}
	for _, it := range items {
		mine := it.State == storage.Taken && it.Gen == f.Gen
		if it.State != storage.Waiting && !mine {
			continue
		}
		delivered, err := r.claim(ctx, b, it)
		if err != nil {
			return nil, err
		}
		if delivered {
			reply.IDs = append(reply.IDs, it.ID)
			if it.Round > 0 {
				if reply.Rounds == nil {
					reply.Rounds = map[storage.StreamID]int{}
				}
				reply.Rounds[it.ID] = it.Round
			}
		}
	}
	return reply, nil
}

// claim takes an item for the generation of b and sends its delivery to the runner. delivered
// is false if the runner does not get it: another generation has it, or the request is over.
func (r runner) claim(ctx context.Context, b storage.Box, it storage.Item) (delivered bool, err error) {
	if it.State == storage.Waiting && time.Now().After(it.NotAfter) {
		return false, r.h.endItem(ctx, it, expired)
	}
	it, err = r.h.Store.Claim(ctx, it.Box, it.ID, b.Gen)
	if errors.Is(err, storage.Conflict) || errors.Is(err, storage.NotFound) {
		return false, nil
	}
	if err != nil || it.Raw == nil {
		return false, err
	}
	tail, err := r.h.Store.Tail(ctx, it.Address.Session, it.ID)
	if err != nil {
		return false, err
	}
	if tail.Final {
		return false, r.h.endedItem(ctx, it)
	}
	s, _, err := r.h.Store.Load(ctx, it.Address.Session, b.ID)
	if errors.Is(err, storage.NotFound) || err == nil && s.State == storage.Ended {
		return false, r.h.endItem(ctx, it, sessionEnded())
	}
	if err != nil {
		return false, err
	}
	d := sessions.Delivery{Address: it.Address, Client: s, Server: b.Server, Raw: it.Raw}
	if r.h.Secrets != nil {
		if d.Secrets, err = r.h.Secrets(ctx, s); err != nil {
			r.h.Log.WarnContext(ctx, "what a caller has at third parties cannot be read", "server", s.Server, "session_id", s.ID, "error", err)
			why := advised(storage.Failure{Phase: phaseUnavailable}, "what you have connected at third parties cannot be read or renewed now", "try again in a while")
			return false, r.h.endItem(ctx, it, why)
		}
	}
	f := r.h.deliverFrame(d, b, it.NotAfter, true)
	f.Round, f.Base = it.Round, it.Base
	return true, r.h.post(ctx, r.conn, f)
}

// mark writes an item in state Taken for each ticket. mark returns Invalid for a ticket that is not
// the sender's, or whose delivery has no request.
func (r runner) mark(ctx context.Context, tickets []string) error {
	if len(tickets) > storage.MaxBatchEvents {
		return storage.Errorf(storage.Invalid, "a frame of box %s has %d tickets; at most %d are taken", r.from.Box, len(tickets), storage.MaxBatchEvents)
	}
	for _, sealed := range tickets {
		t, err := r.open(ctx, sealed)
		if err != nil {
			return err
		}
		if len(t.Requests) == 0 {
			return storage.Errorf(storage.Invalid, "a ticket of session %s is not that of a request", t.Session)
		}
		if _, err := r.h.Store.PutItem(ctx, storage.Item{
			Box: t.Box, ID: t.Stream, State: storage.Taken, Gen: t.Gen, Address: t.Address, Created: time.Now(),
		}); err != nil {
			return err
		}
	}
	return nil
}

// open reads a ticket and checks that the frame's sender may use it. The ticket must name the
// sender's box. Its generation may be the sender's or a lower one, because standalone events may come
// with an older ticket. After an older ticket, open also checks the sender's generation against the
// record: a write with a generation that is too high would fence all later ones.
func (r runner) open(ctx context.Context, sealed string) (Ticket, error) {
	t, err := r.h.Sealer.Open(sealed)
	if err != nil {
		return t, err
	}
	if t.Box != r.from.Box || t.Gen > r.from.Gen {
		return t, storage.Errorf(storage.Invalid, "a ticket of box %s, generation %d came from box %s, generation %d", t.Box, t.Gen, r.from.Box, r.from.Gen)
	}
	if r.from.Gen > t.Gen {
		b, err := r.h.Store.Box(ctx, r.from.Box)
		if err != nil {
			return t, err
		}
		if r.from.Gen > b.Gen {
			return t, storage.Errorf(storage.Invalid, "box %s claims generation %d and has only %d", r.from.Box, r.from.Gen, b.Gen)
		}
	}
	r.account.opened(t)
	return t, nil
}

// status handles a report about a process. A report with a payload has a ticket, and is the
// handshake or the lists of a fresh process. A report without a payload has no ticket: it counts
// only if it comes over the connection that is in the record of the box.
func (r runner) status(ctx context.Context, f frame.Status) error {
	if len(f.Payload) == 0 {
		b, err := r.h.Store.Box(ctx, f.Box)
		if err != nil || b.State != storage.Awake || b.Conn != r.conn {
			return err
		}
		r.account.proven = true
		if f.Phase == frame.PhaseFull {
			err = r.filled(ctx, f.Box)
		}
		if f.Phase == frame.PhaseMemory && r.h.MakeRoom != nil {
			r.h.MakeRoom()
		}
		r.h.Log.InfoContext(ctx, "process", "box", f.Box, "session_id", f.Session, "process", frame.Clip(f.Process), "phase", frame.Clip(f.Phase), "detail", frame.Clip(f.Detail))
		return err
	}
	t, err := r.open(ctx, f.Ticket)
	if err != nil {
		return err
	}
	return r.reported(ctx, f, t)
}

// filled marks a box as full. The caller has just seen the box awake. filled removes the mark
// if the box has fallen asleep since, because emptied may have been called before filled set
// the mark.
func (r runner) filled(ctx context.Context, id storage.BoxID) error {
	if err := r.h.markFull(ctx, id, true); err != nil {
		return err
	}
	b, err := r.h.Store.Box(ctx, id)
	if err == nil && b.State == storage.Asleep {
		err = r.h.markFull(ctx, id, false)
	}
	return err
}

// reported stores a report about a fresh process of the session of t: its lists, or its
// handshake and the era of its server.
func (r runner) reported(ctx context.Context, f frame.Status, t Ticket) error {
	if f.Lists != "" {
		return r.started(ctx, f, t)
	}
	if f.Era == wire.ModernOnly || f.Era == wire.LegacyOnly || f.Era == wire.DualEra {
		if _, _, err := r.change(ctx, func(b storage.Box) (storage.Box, decision) {
			if b.Era == string(f.Era) {
				return b, known
			}
			b.Era = string(f.Era)
			return b, write
		}); err != nil {
			return err
		}
	}
	if !wire.Legacy(f.Detail) { // f.Detail is the protocol version asked for; only legacy handshakes are kept
		return nil
	}
	now := time.Now()
	return r.h.Store.SaveHandshake(storage.Lazily(ctx), storage.Handshake{
		Digest: t.Digest, Version: f.Detail, Result: bytes.Clone(f.Payload), Taken: now, Expires: now.Add(storage.HandshakeLife),
	})
}

func (r runner) bye(ctx context.Context, f frame.Bye) (frame.Frame, error) {
	_, v, err := r.change(ctx, func(b storage.Box) (storage.Box, decision) { return bye(b, f, time.Now()) })
	switch {
	case err != nil || v == ignore:
		return nil, err
	case v == refuse:
		return frame.Fenced{Link: f.Link}, nil
	case v == write:
		r.h.emptied(ctx, f.Box)
	}
	return frame.ByeOK{Link: f.Link}, nil
}
