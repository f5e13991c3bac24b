package native

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// laterPrefix begins the requestState of a call that pauses. This state stays in the store.
const laterPrefix = "dormouse-later:"

// maxPauses is how often one call may pause. maxAsked limits the open questions of a call, because
// one record holds them all.
const (
	maxPauses = 10_000
	maxAsked  = 100
)

// Later is the result of a tool whose call has nothing to do for now. At the given time another
// invocation calls the handler again, with the same arguments and with state as RequestState. The
// client gets the handler's earlier progress at once.
//
// If another call of the same batch asks its client, the handler may be called sooner. A call may
// pause 10,000 times, and ends with its session. It can ask its client only while it has asked and
// paused fewer than 100 times.
func Later(at time.Time, state string) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		InputRequests: mcp.InputRequestMap{}, RequestState: laterPrefix + strconv.FormatInt(at.UnixMilli(), 10) + ":" + state,
	}
}

// readLater reads the state of a [Later]: the time, and the author's own state as JSON.
func readLater(state json.RawMessage) (at time.Time, own json.RawMessage, ok bool) {
	text, _ := wire.String(state)
	rest, ok := strings.CutPrefix(text, laterPrefix)
	if !ok {
		return time.Time{}, nil, false
	}
	ms, text, _ := strings.Cut(rest, ":")
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return time.Time{}, nil, false
	}
	own, err = json.Marshal(text)
	return time.UnixMilli(n), own, err == nil
}

// ask records that a call goes on when its client has answered or its pause is over. If the call may
// not ask or pause, ask returns its error response.
func (r *run) ask(a *asking) []byte {
	most, why := storage.MaxRounds, "it has asked too often"
	asks := len(a.inputs) + len(a.whole)
	if asks == 0 {
		most, why = maxPauses, "the call has paused too often"
	}
	if r.round >= most {
		return wire.ErrorResponse(a.id, failure(r.in.record.Server, phaseToolCall, why))
	}
	if asks > 0 {
		first := 0
		for _, other := range r.asks {
			first += len(other.asked)
		}
		if first+asks > maxAsked {
			return wire.ErrorResponse(a.id, failure(r.in.record.Server, phaseToolCall, "it asks for too much at a time"))
		}
		var fault *wire.Error
		client := bridge.ReadLegacy(r.in.record.Init)
		a.asked, a.requests, fault = client.Ask(string(r.address.Stream), r.round+1, first, len(r.asks), a.inputs)
		if fault != nil {
			return wire.ErrorResponse(a.id, fault)
		}
		for i, raw := range a.whole {
			id := storage.QuestionID(r.address.Stream, r.round+1, first+i)
			key, _ := wire.String(wire.Lookup(raw, "id"))
			raw, _ = wire.Replace(raw, wire.AppendString(nil, id), "id")
			a.asked = append(a.asked, bridge.Asked{ID: id, Key: key, Of: len(r.asks)})
			a.requests = append(a.requests, raw)
		}
	}
	r.asks = append(r.asks, a)
	return nil
}

// suspend ends the run of a request that goes on later. It writes the item before the
// questions, so that an answer finds the item. Without questions it writes the events first,
// because another instance may go on as soon as the item is there.
func (r *run) suspend() {
	var questions []bridge.Asked
	var raws, requests [][]byte
	var at time.Time
	for _, a := range r.asks {
		questions, requests, raws = append(questions, a.asked...), append(requests, a.requests...), append(raws, a.raw)
		if !a.at.IsZero() && (at.IsZero() || a.at.Before(at)) {
			at = a.at
		}
	}
	said := append(r.said.drain(true), requests...)
	if len(questions) > 0 {
		within := r.in.server.AnswerTimeout
		if within <= 0 {
			within = storage.MaxAsk
		}
		it := r.item().Suspend(questions, merged(raws), r.base+storage.Index(len(said)), time.Now(), within)
		if r.park(it) {
			r.writeAll(said, false)
		}
		return
	}
	if len(said) > 0 {
		if err := r.mark(); err != nil {
			r.warn(err)
			r.lost = true
			return
		}
		r.writeAll(said, false)
	}
	it := r.item()
	it.State, it.Round, it.Raw, it.NotAfter = storage.Suspended, r.round+1, merged(raws), at
	if !r.lost && r.park(it) {
		r.warn(r.k.schedule(r.ctx, r.k.alarmOf(it, at)))
	}
}

// park writes the item of a suspended request. If that fails, the run gives the request up.
func (r *run) park(it storage.Item) bool {
	var err error
	if r.claim.put {
		r.parked, err = r.k.swap(r.ctx, r.item(), it)
	} else {
		r.parked, err = r.k.put(r.ctx, it)
	}
	r.warn(err)
	r.lost = !r.parked
	return r.parked
}

// answered goes on with a suspended call if all its questions are answered. It does not wait for the
// call: another invocation executes it, or a goroutine if [Config.Invoke] is nil. If the client
// cannot do what the server asked, the call ends. it.Raw may be nil.
func (k *Backend) answered(ctx context.Context, it storage.Item) error {
	ids := make([]string, len(it.Questions))
	for i, q := range it.Questions {
		ids[i] = q.ID
	}
	answers, err := k.Store.Answers(ctx, it.Address.Session, ids)
	if err != nil || len(answers) < len(ids) {
		return err
	}
	if it, err = k.whole(ctx, it); err != nil || it.Raw == nil {
		return err
	}
	raw, fault := bridge.Again(it.Raw, it.Questions, answers)
	if fault != nil {
		return k.end(ctx, it, fault)
	}
	if k.Invoke == nil {
		return k.resume(ctx, it, raw, false)
	}
	now := time.Now()
	next := it.Resume(raw, now, now.Add(validity))
	swapped, err := k.swap(ctx, it, next)
	if swapped {
		k.invokeLater(ctx, next)
	}
	return err
}

// Handle does the work of an invocation that an alarm or [Config.Invoke] began, and returns
// when it is done. After an error, call it again.
//
// Errors: Unavailable.
func (k *Backend) Handle(ctx context.Context, a Alarm) error {
	if a.Stream == "" {
		return k.ring(ctx, a)
	}
	it, err := k.Store.Item(ctx, storage.BoxFor(a.Tenant, a.Server).Numbered(a.Session.Box()), a.Stream)
	switch {
	case errors.Is(err, storage.NotFound):
		return nil // the call has ended
	case err != nil:
		return err
	case it.Address.Session != a.Session || it.Round != a.Round:
		return nil // the call has gone on since the alarm was set
	}
	pauses := it.State == storage.Suspended && len(it.Questions) == 0
	switch {
	case pauses && time.Now().Before(it.NotAfter.Add(-early)): // the alarm came too early
		return k.schedule(ctx, k.alarmOf(it, it.NotAfter))
	case pauses, it.State == storage.Waiting, k.noted(it):
		return k.resume(ctx, it, it.Raw, true)
	default:
		return k.resolve(ctx, it)
	}
}

// early is how long before its time an alarm may come.
const early = time.Second

// resume claims an item for this instance and executes raw, unless another instance has the item, or
// there is nothing left to execute. If wait is false, resume returns before the end of the execution.
func (k *Backend) resume(ctx context.Context, it storage.Item, raw []byte, wait bool) error {
	s, _, err := k.Store.Load(ctx, it.Address.Session, "")
	if errors.Is(err, storage.NotFound) || err == nil && s.State == storage.Ended {
		return k.end(ctx, it, sessionEnded(it))
	}
	if err != nil {
		return err
	}
	base, skip := it.Base, map[string]int(nil)
	if it.State != storage.Waiting {
		// The client may have cancelled the request before its item was there.
		tail, err := k.Store.Tail(ctx, it.Address.Session, it.ID)
		if err != nil {
			return err
		}
		if it.State == storage.Taken { // the instance that executed it has died; see Request.Note
			if skip, err = k.logged(ctx, it, tail.Last); err != nil {
				return err
			}
			base = tail.Last
		}
		if tail.Final {
			return k.end(ctx, it, lost(it, phaseRuntime, "the request has ended"))
		}
	}
	server, ok := k.Servers(s.Server)
	msgs, _, bad := wire.ParseBody(raw)
	if !ok || bad != nil {
		return k.end(ctx, it, lost(it, phaseUnavailable, "the server is not configured any more"))
	}
	r := k.newRun(ctx, it.Address, s, server)
	r.round, r.base, r.start, r.claim.put, r.claim.renewed = it.Round, base, base, true, time.Now()
	r.said.skip = skip
	if swapped, err := k.swap(ctx, it, r.item()); err != nil || !swapped {
		return err
	}
	r.take(msgs, it.Round > 0 || it.State == storage.Taken)
	r.enter(ctx)
	if wait {
		r.execute()
	} else {
		go r.execute()
	}
	return nil
}

// logged counts how often the log has each event of a request after the index it.Base, up to the
// index last.
func (k *Backend) logged(ctx context.Context, it storage.Item, last storage.Index) (map[string]int, error) {
	events := map[string]int{}
	for at := it.Base; at < last; {
		page, err := k.Store.Read(ctx, it.Address.Session, it.ID, at, storage.MaxRead)
		if err != nil || len(page.Events) == 0 {
			return events, err
		}
		for _, e := range page.Events {
			if at = e.Index; at <= last {
				events[string(e.Raw)]++
			}
		}
	}
	return events, nil
}
