package relayserver_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// siege is the relay function before a runner that lies. The hostile box is m/s, of tenant
// m, awake in generation 5; the honest one is a/s, in generation 3. Each box has sessions
// with one event on the standalone stream.
type siege struct {
	t       *testing.T
	store   *storagetest.Counting
	memory  *storagetest.Memory
	handler *relayserver.Handler
	sealer  *relayserver.Sealer
	posts   []string
}

const (
	hostileBox, honestBox = storage.BoxID("m/s"), storage.BoxID("a/s")
	hostileGen, honestGen = storage.Generation(5), storage.Generation(3)
)

func newSiege(t *testing.T) *siege {
	t.Helper()
	s := &siege{t: t, memory: storagetest.NewMemory(), sealer: sealerOf(t, 7)}
	s.store = storagetest.NewCounting(s.memory)
	s.handler = relayserver.NewHandler(relayserver.Config{Store: s.store, Sealer: s.sealer, Poster: s})
	ctx := t.Context()
	for _, b := range []storage.Box{
		{ID: hostileBox, Tenant: "m", Server: "s", State: storage.Awake, Gen: hostileGen, Runner: "runner-m", Task: "task-m", Conn: "conn-m", Link: 1},
		{ID: honestBox, Tenant: "a", Server: "s", State: storage.Awake, Gen: honestGen, Runner: "runner-a", Task: "task-a", Conn: "conn-a", Link: 1},
	} {
		commontest.OK(t, s.memory.SaveBox(ctx, b))
		for n := range 2 {
			id := storage.ID(fmt.Sprintf("%s%d", b.Tenant, n+1))
			commontest.OK(t, s.memory.Create(ctx, storage.Session{
				ID: id, Tenant: b.Tenant, Server: b.Server, State: storage.Ready, Expires: time.Now().Add(24 * time.Hour),
			}))
			commontest.OK(t, s.memory.Append(ctx, storage.Batch{
				Session: id, First: 1, Gen: b.Gen, Seq: 1, Events: [][]byte{[]byte(`{"first":true}`)}, Expires: time.Now().Add(24 * time.Hour),
			}))
		}
		if _, err := s.memory.PutItem(ctx, storage.Item{
			Box: b.ID, ID: "waits", State: storage.Waiting, Address: s.address(storage.ID(b.Tenant+"1"), "waits", b.ID), Raw: []byte(`{}`), NotAfter: time.Now().Add(time.Hour),
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Post implements relay.Poster.
func (s *siege) Post(_ context.Context, conn string, data []byte) error {
	s.posts = append(s.posts, conn+" "+string(data))
	return nil
}

func (s *siege) address(id storage.ID, stream storage.StreamID, box storage.BoxID) storage.Address {
	return storage.Address{Session: id, Stream: stream, Box: box, Digest: "digest", Requests: []json.RawMessage{json.RawMessage("1")}}
}

// ticket returns a real ticket.
func (s *siege) ticket(id storage.ID, stream storage.StreamID, box storage.BoxID, gen storage.Generation) string {
	return s.sealer.Seal(s.address(id, stream, box), gen)
}

// events returns a batch of the hostile box with one event.
func (s *siege) events(id storage.ID, stream storage.StreamID, first storage.Index, ticket string) frametest.Frame {
	return frametest.Frame{
		Type: frame.TypeEvents, Box: hostileBox, Gen: hostileGen, Seq: 9, Session: id, Payload: []byte(`{"evil":true}`),
		Items: []frame.EventItem{{Ticket: ticket, Stream: stream, First: first, Lens: []int{13}}},
	}
}

// handle makes the relay function handle a message and returns its answer.
func (s *siege) handle(data []byte) (frametest.Frame, error) {
	reply, err := s.handler.Frame(s.t.Context(), "conn-x", data)
	if err != nil || reply == nil {
		return frametest.Frame{}, err
	}
	f, err := frametest.Decode(reply)
	commontest.OK(s.t, err)
	return f, nil
}

// gainsNothing handles a message and checks that it has no effect: nothing is written or
// posted, and the answer is none, an error, a fence, or an ack of nothing.
func (s *siege) gainsNothing(what string, data []byte) {
	s.t.Helper()
	s.store.Reset()
	s.posts = nil
	f, err := s.handle(data)
	if n := s.store.Counts(); n.Writes > 0 || len(s.posts) > 0 {
		s.t.Errorf("%s has an effect: it wrote %v and posted %d frames", what, n.Calls, len(s.posts))
	}
	switch {
	case err != nil && storage.CodeOf(err) != storage.Invalid:
		s.t.Errorf("%s: %v", what, err)
	case f.Type == frame.TypeAck && f.Next == 0, f.Type == frame.TypeFenced, f.Type == "":
	default:
		s.t.Errorf("%s is answered with the frame %q; want none, a fence, or an ack of nothing", what, f.Type)
	}
}

// isFenced is gainsNothing for a frame whose answer must be a fence.
func (s *siege) isFenced(what string, f frametest.Frame) {
	s.t.Helper()
	s.gainsNothing(what, frametest.Encode(f))
	if reply, err := s.handle(frametest.Encode(f)); err != nil || reply.Type != frame.TypeFenced {
		s.t.Errorf("%s is answered with the frame %q, %v; want a fence", what, reply.Type, err)
	}
}

func TestForgedTicketIsWorthNothing(t *testing.T) {
	s := newSiege(t)
	real := s.ticket("m1", "d1", hostileBox, hostileGen)
	forged := map[string]string{
		"none": "", "not base64": "%%%", "too short": "AAAA", "of another secret": sealerOf(t, 8).Seal(s.address("m1", "d1", hostileBox), hostileGen),
		"unsealed":  base64.RawURLEncoding.EncodeToString([]byte(`{"s":"m1","d":"d1","b":"m/s","g":5,"e":99999999999}`)),
		"truncated": real[:len(real)-4], "extended": real + "AAAA",
	}
	raw, err := base64.RawURLEncoding.DecodeString(real)
	commontest.OK(t, err)
	for i := range raw {
		raw[i] ^= 1
		forged[fmt.Sprintf("byte %d changed", i)] = base64.RawURLEncoding.EncodeToString(raw)
		raw[i] ^= 1
	}
	for what, ticket := range forged {
		s.gainsNothing("events, ticket "+what, frametest.Encode(s.events("m1", "d1", 1, ticket)))
		s.gainsNothing("common, ticket "+what, frametest.Encode(s.events("m1", storage.Standalone, 2, ticket)))
		s.gainsNothing("taken, ticket "+what, frametest.Encode(frametest.Frame{Type: frame.TypeTaken, Box: hostileBox, Gen: hostileGen, Tickets: []string{ticket}}))
		s.gainsNothing("status, ticket "+what, frametest.Encode(frametest.Frame{Type: frame.TypeStatus, Box: hostileBox, Gen: hostileGen, Ticket: ticket, Payload: []byte(`{}`)}))
	}
}

func TestTicketOfAnotherSessionDoesNotFit(t *testing.T) {
	s := newSiege(t)
	mine := s.ticket("m1", "d1", hostileBox, hostileGen)
	s.gainsNothing("standalone stream of another session", frametest.Encode(s.events("m2", storage.Standalone, 2, mine)))
	s.gainsNothing("standalone stream of a foreign session", frametest.Encode(s.events("a1", storage.Standalone, 2, mine)))
	s.gainsNothing("request stream of another session", frametest.Encode(s.events("m2", "d1", 1, mine)))
	s.gainsNothing("another request stream", frametest.Encode(s.events("m1", "d2", 1, mine)))
	// A frame with one bad item is refused, even if its other items are good.
	f := s.events("m1", "d1", 1, mine)
	f.Items = append(f.Items, frame.EventItem{Ticket: mine, Stream: "d2", First: 1, Lens: []int{13}})
	f.Payload = bytes.Repeat(f.Payload, 2)
	s.gainsNothing("a second item with a stream not its own", frametest.Encode(f))
}

func TestTicketOfAnotherBoxDoesNotFit(t *testing.T) {
	s := newSiege(t)
	theirs := s.ticket("a1", "d1", honestBox, honestGen)
	for _, box := range []storage.BoxID{hostileBox, "", "a/S", "a/s/"} {
		events := s.events("a1", "d1", 1, theirs)
		common := s.events("a1", storage.Standalone, 2, theirs)
		events.Box, common.Box = box, box
		s.gainsNothing("events", frametest.Encode(events))
		s.gainsNothing("standalone events", frametest.Encode(common))
		s.gainsNothing("taken", frametest.Encode(frametest.Frame{Type: frame.TypeTaken, Box: box, Gen: hostileGen, Tickets: []string{theirs}}))
		s.gainsNothing("status", frametest.Encode(frametest.Frame{Type: frame.TypeStatus, Box: box, Gen: hostileGen, Ticket: theirs, Payload: []byte(`{}`)}))
	}
	mine := s.events("m1", "d1", 1, s.ticket("m1", "d1", hostileBox, hostileGen))
	mine.Box = honestBox
	s.gainsNothing("own ticket in the name of another box", frametest.Encode(mine))
}

func TestTicketOfANewerGenerationDoesNotFit(t *testing.T) {
	s := newSiege(t)
	next := s.ticket("m1", "d1", hostileBox, hostileGen+1)
	s.gainsNothing("events", frametest.Encode(s.events("m1", "d1", 1, next)))
	s.gainsNothing("common", frametest.Encode(s.events("m1", storage.Standalone, 2, next)))
	s.gainsNothing("taken", frametest.Encode(frametest.Frame{Type: frame.TypeTaken, Box: hostileBox, Gen: hostileGen, Tickets: []string{next}}))
}

func TestTicketExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSiege(t)
		old := s.ticket("m1", "d1", hostileBox, hostileGen)
		time.Sleep(7*24*time.Hour + time.Second)
		s.gainsNothing("events", frametest.Encode(s.events("m1", "d1", 1, old)))
		s.gainsNothing("taken", frametest.Encode(frametest.Frame{Type: frame.TypeTaken, Box: hostileBox, Gen: hostileGen, Tickets: []string{old}}))
	})
}

// With an old ticket of its own, a box can only write to those indexes of its own streams
// that are still free.
func TestReplayedTicketDoesNotChangeWhatIsWritten(t *testing.T) {
	s := newSiege(t)
	old := s.ticket("m1", "d1", hostileBox, hostileGen-1)
	end := storage.Batch{
		Session: "m1", Stream: "d1", First: 1, Final: true, Events: [][]byte{[]byte(`{"end":true}`)}, Expires: time.Now().Add(time.Hour),
	}
	commontest.OK(t, s.memory.Append(t.Context(), end))
	before := s.memory.Batches()
	if f, err := s.handle(frametest.Encode(s.events("m1", "d1", 1, old))); err != nil || len(f.Closed) != 1 {
		t.Errorf("answered with %+v, %v", f, err)
	}
	if f, err := s.handle(frametest.Encode(s.events("m1", storage.Standalone, 1, old))); err != nil || !f.Fenced {
		t.Errorf("answered with %+v, %v", f, err)
	}
	commontest.Same(t, before, s.memory.Batches())
}

// Connections of one runner may say hello in another order than they were opened.
func TestAnOvertakenHelloChangesNothing(t *testing.T) {
	a := newAsylum(t)
	box, err := a.store.Box(t.Context(), asylumBox)
	commontest.OK(t, err)
	box.Link = 5
	commontest.OK(t, a.store.SaveBox(t.Context(), box))
	for _, link := range []int64{4, 5} {
		a.handle(frametest.Frame{Type: frame.TypeHello, Box: asylumBox, Gen: asylumGen, Runner: "r", Link: link, Task: "task"})
	}
	if now, err := a.store.Box(t.Context(), asylumBox); err != nil || now.Rev != box.Rev+1 || now.Link != 5 {
		t.Errorf("the record changed: %+v, %v", now, err)
	}
}

func TestHelloThatIsNotTheRunnersIsFenced(t *testing.T) {
	s := newSiege(t)
	hello := func(set func(*frametest.Frame)) frametest.Frame {
		f := frametest.Frame{Type: frame.TypeHello, Box: honestBox, Gen: honestGen, Runner: "runner-m", Link: 2, Task: "task-m"}
		set(&f)
		return f
	}
	for _, state := range []storage.BoxState{storage.Awake, storage.Asleep, storage.Starting} {
		b, err := s.memory.Box(t.Context(), honestBox)
		commontest.OK(t, err)
		b.State = state
		if state == storage.Starting {
			b.Runner, b.TokenHash, b.Owner, b.Until = "", strings.Repeat("0", 64), "owner", time.Now().Add(time.Minute)
		}
		commontest.OK(t, s.memory.SaveBox(t.Context(), b))
		what := fmt.Sprintf("box %q: ", state)
		s.isFenced(what+"another runner", hello(func(*frametest.Frame) {}))
		s.isFenced(what+"no runner", hello(func(f *frametest.Frame) { f.Runner = "" }))
		s.isFenced(what+"a token", hello(func(f *frametest.Frame) { f.Token = "guess" }))
		s.isFenced(what+"a token and no runner", hello(func(f *frametest.Frame) { f.Token, f.Runner = "guess", "" }))
		s.isFenced(what+"the hash for the token", hello(func(f *frametest.Frame) { f.Token = strings.Repeat("0", 64) }))
		s.isFenced(what+"a generation ahead", hello(func(f *frametest.Frame) { f.Gen++ }))
		s.isFenced(what+"a link far ahead", hello(func(f *frametest.Frame) { f.Link = math.MaxInt64 }))
	}
	s.isFenced("a box that nobody has", hello(func(f *frametest.Frame) { f.Box = "x/y" }))
	s.isFenced("no box", hello(func(f *frametest.Frame) { f.Box, f.Runner = "", "" }))
}

func TestFramesInTheNameOfAnotherBoxAreFenced(t *testing.T) {
	s := newSiege(t)
	for _, runner := range []string{"runner-m", ""} {
		for _, gen := range []storage.Generation{hostileGen, honestGen, 0} {
			s.isFenced("pull", frametest.Frame{Type: frame.TypePull, Box: honestBox, Gen: gen, Runner: runner, N: 1})
		}
		s.isFenced("bye", frametest.Frame{Type: frame.TypeBye, Box: honestBox, Gen: honestGen, Runner: runner, Link: 1})
		for _, box := range []storage.BoxID{honestBox, "x/y"} { // nobody has x/y
			f := part("0.a", 0, "x")
			f.Box, f.Runner = box, runner
			s.isFenced("part", f)
		}
	}
}

func TestFramesThatMakeNoSenseAreRefused(t *testing.T) {
	s := newSiege(t)
	ticket := s.ticket("m1", "d1", hostileBox, hostileGen)
	events := func(lens ...int) []byte {
		f := s.events("m1", "d1", 1, ticket)
		f.Items[0].Lens = lens
		return frametest.Encode(f)
	}
	long := strings.Repeat("x", 1<<20)
	for what, data := range map[string][]byte{
		"nothing":                {},
		"a newline":              []byte("\n"),
		"no JSON":                []byte("hello"),
		"half a header":          []byte(`{"v":1,"t":"events","items":[{`),
		"an array":               []byte(`[{"v":1,"t":"events"}]`),
		"wrong types":            []byte(`{"v":"1","t":5,"gen":{},"lens":"x"}`),
		"numbers too big":        []byte(`{"v":1,"t":"pull","gen":1e400}`),
		"deep arrays":            []byte(`{"v":1,"t":"pull","x":` + strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000) + `}`),
		"deep objects":           []byte(`{"v":1,"t":"pull","x":` + strings.Repeat(`{"x":`, 50_000)),
		"an unknown type":        []byte(`{"v":1,"t":"give-me-all","box":"a/s"}`),
		"a type of the host":     frametest.Encode(frametest.Frame{Type: frame.TypeWelcome, Box: honestBox, Gen: 99}),
		"a deliver":              frametest.Encode(frametest.Frame{Type: frame.TypeDeliver, Box: honestBox, Session: "a1", ID: "d9", Lens: []int{0, 2}, Payload: []byte("{}")}),
		"no lengths":             events(),
		"a negative length":      events(-1),
		"negative and positive":  events(-13, 26),
		"a length too short":     events(12, 2),
		"a length too long":      events(14),
		"a huge length":          events(math.MaxInt),
		"two that overflow":      events(math.MaxInt, math.MaxInt),
		"a huge and a small one": events(math.MaxInt, 1),
		"many that overflow":     events(1<<62, 1<<62, 1<<62, 1<<62, 13),
		"no index":               frametest.Encode(s.events("m1", "d1", 0, ticket)),
		"a negative index":       frametest.Encode(s.events("m1", "d1", -1, ticket)),
		"whole of nothing":       frametest.Encode(frametest.Frame{Type: frame.TypeWhole, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.x", Of: 1}),
		"whole of none":          frametest.Encode(frametest.Frame{Type: frame.TypeWhole, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.x"}),
		"a part too long":        frametest.Encode(frametest.Frame{Type: frame.TypePart, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.x", Of: 1, Payload: []byte(long)}),
		"a negative part":        frametest.Encode(frametest.Frame{Type: frame.TypePart, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.x", N: -1, Of: 1, Payload: []byte("x")}),
		"a part far behind":      frametest.Encode(frametest.Frame{Type: frame.TypePart, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.x", N: 1 << 40, Of: 1, Payload: []byte("x")}),
		"a part of no frame":     frametest.Encode(frametest.Frame{Type: frame.TypePart, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Of: 1, Payload: []byte("x")}),
		"more items than events": s.crowd(storage.MaxBatchEvents + 1),
		"a task without end":     frametest.Encode(frametest.Frame{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 99, Task: long[:1000]}),
		"more tickets than any":  frametest.Encode(frametest.Frame{Type: frame.TypeTaken, Box: hostileBox, Gen: hostileGen, Tickets: slices.Repeat([]string{ticket}, storage.MaxBatchEvents+1)}),
		"a part of no box":       frametest.Encode(frametest.Frame{Type: frame.TypePart, Frame: "0.x", Of: 1, Payload: []byte("x")}),
	} {
		s.gainsNothing(what, data)
	}
}

// crowd returns a batch of n events.
func (s *siege) crowd(n int) []byte {
	f := s.events("m1", "d1", 1, s.ticket("m1", "d1", hostileBox, hostileGen))
	f.Items[0].Lens, f.Payload = slices.Repeat([]int{2}, n), bytes.Repeat([]byte("{}"), n)
	return frametest.Encode(f)
}

func TestOnlyTheRunnersOwnConnectionWritesToTheHostsLog(t *testing.T) {
	s := newSiege(t)
	var log bytes.Buffer
	h := relayserver.NewHandler(relayserver.Config{Store: s.store, Sealer: s.sealer, Poster: s, Log: slog.New(slog.NewTextHandler(&log, nil))})
	say := func(conn string, box storage.BoxID, detail string) {
		f := frametest.Frame{Type: frame.TypeStatus, Box: box, Gen: hostileGen, Session: "m1", Process: "p1", Phase: "runtime", Detail: detail}
		if _, err := h.Frame(t.Context(), conn, frametest.Encode(f)); err != nil {
			t.Fatal(err)
		}
	}
	say("conn-x", hostileBox, "from nobody")
	say("conn-m", honestBox, "of another box")
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
	say("conn-m", hostileBox, strings.Repeat("loud ", 20_000))
	if got := log.String(); !strings.Contains(got, "loud") || len(got) > 2000 {
		t.Errorf("logged %d bytes: %.200s", len(got), got)
	}
}

func TestFrameWithANameThatIsTooLongIsRefusedInFewWords(t *testing.T) {
	s := newSiege(t)
	long := strings.Repeat("x", 5000)
	for _, f := range []frametest.Frame{
		{Type: frame.TypeHello, Box: storage.BoxID(long), Runner: "r"},
		{Type: frame.TypePull, Box: hostileBox, Runner: long},
		{Type: frame.TypeEvents, Box: hostileBox, Session: storage.ID(long), Items: []frame.EventItem{{}}},
	} {
		_, err := s.handle(frametest.Encode(f))
		if storage.CodeOf(err) != storage.Invalid || len(err.Error()) > 200 {
			t.Errorf("%s: %.300v", f.Type, err)
		}
	}
}

func TestJoinedFrameHasNoMorePowerThanAnother(t *testing.T) {
	s := newSiege(t)
	for n, inner := range []frametest.Frame{
		{Type: frame.TypePull, Box: honestBox, Gen: honestGen, Runner: "runner-m", N: 1},
		{Type: frame.TypePull, Box: honestBox, Gen: honestGen, Runner: "runner-a", N: 1}, // it may know the other's id
		{Type: frame.TypeBye, Box: honestBox, Gen: honestGen, Runner: "runner-m", Link: 1},
		{Type: frame.TypeWhole, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.a", Of: 1},
		{Type: frame.TypePart, Box: honestBox, Frame: "0.a", Of: 1, Payload: []byte("x")},
		s.events("a1", storage.Standalone, 2, s.ticket("a1", "d1", honestBox, honestGen)),
		// The host reads questions one by one, so one frame must not have more questions
		// than fit into one message.
		{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 7, Questions: map[storage.ID][]string{"m1": {"q"}}},
	} {
		name := fmt.Sprintf("%d.a", n)
		if _, err := s.handle(frametest.Encode(part(name, 0, string(frametest.Encode(inner))))); err != nil {
			t.Fatal(err)
		}
		s.gainsNothing(string(inner.Type), frametest.Encode(frametest.Frame{
			Type: frame.TypeWhole, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: name, Of: 1,
		}))
	}
}

// staleSiege is a siege in which the hostile box has a newer generation, whose
// runner has written to session m1.
func staleSiege(t *testing.T) *siege {
	t.Helper()
	s := newSiege(t)
	b, err := s.memory.Box(t.Context(), hostileBox)
	commontest.OK(t, err)
	b.Gen, b.Lost, b.Runner, b.Conn = hostileGen+1, hostileGen, "runner-n", "conn-n"
	commontest.OK(t, s.memory.SaveBox(t.Context(), b))
	newer := s.events("m1", storage.Standalone, 0, s.ticket("m1", "d2", hostileBox, hostileGen+1))
	newer.Gen, newer.Seq = hostileGen+1, 1
	if f, err := s.handle(frametest.Encode(newer)); err != nil || f.Next != 3 {
		t.Fatalf("the newer runner is answered with %+v, %v", f, err)
	}
	return s
}

func TestStaleRunnerIsFencedByItsFirstWrite(t *testing.T) {
	for _, first := range []storage.Index{0, 2} { // it knows the next index, or not
		s := staleSiege(t)
		before := s.memory.Batches()
		f, err := s.handle(frametest.Encode(s.events("m1", storage.Standalone, first, s.ticket("m1", "d1", hostileBox, hostileGen))))
		if err != nil || !f.Fenced {
			t.Errorf("the stale runner is answered with %+v, %v", f, err)
		}
		commontest.Same(t, before, s.memory.Batches())
	}
}

func TestStaleRunnerIsFencedByWhateverElseItSays(t *testing.T) {
	s := staleSiege(t)
	s.isFenced("hello", frametest.Frame{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 2})
	s.isFenced("ping", frametest.Frame{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 1})
	s.isFenced("pull", frametest.Frame{Type: frame.TypePull, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", N: 1})
	s.isFenced("bye", frametest.Frame{Type: frame.TypeBye, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 1})
	s.isFenced("part", part("0.a", 0, "x"))
}

// A fenced frame adds none of its events to the log. The calls of the stale runner end
// with an error from the host.
func TestFencedEventIsNotSeenByTheClient(t *testing.T) {
	s := staleSiege(t)
	stale := s.events("m1", storage.Standalone, 2, s.ticket("m1", "d1", hostileBox, hostileGen))
	stale.Payload = append([]byte(`{"evil":true}`), wire.ResultResponse([]byte("1"), []byte(`{"evil":2}`))...)
	stale.Items = append(stale.Items, frame.EventItem{
		Ticket: stale.Items[0].Ticket, Stream: "d1", First: 1, Final: true, Lens: []int{len(stale.Payload) - 13},
	})
	if f, err := s.handle(frametest.Encode(stale)); err != nil || !f.Fenced {
		t.Errorf("answered with %+v, %v", f, err)
	}
	page, err := s.memory.Read(t.Context(), "m1", "d1", 0, 10)
	if err != nil || len(page.Events) > 0 {
		t.Errorf("the log has %d events: %v", len(page.Events), err)
	}
}

func TestAHelloOfManySessionsCostsNoMoreReadsThanABatchHasEvents(t *testing.T) {
	s := newSiege(t)
	questions := map[storage.ID][]string{}
	for i := range 10_000 {
		questions[storage.ID(strconv.Itoa(i))] = nil
	}
	s.store.Reset()
	if _, err := s.handle(frametest.Encode(frametest.Frame{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 1, Questions: questions})); err != nil {
		t.Fatal(err)
	}
	if n := s.store.Counts().Reads; n > storage.MaxBatchEvents+1 {
		t.Errorf("%d reads", n)
	}
}

// A box is asked for the index of its events. A hostile one must not leave a stream in which
// no index is free for the runner after it.
func TestARunnerCannotUseUpTheIndexesOfAStream(t *testing.T) {
	s := newSiege(t)
	for _, first := range []storage.Index{math.MaxInt64, 1<<53 + 1} {
		f := s.events("m1", storage.Standalone, first, s.ticket("m1", "d1", hostileBox, hostileGen))
		if _, err := s.handle(frametest.Encode(f)); storage.CodeOf(err) != storage.Invalid {
			t.Errorf("index %d: %v", first, err)
		}
	}
}
