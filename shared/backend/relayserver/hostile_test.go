package relayserver_test

import (
	"bytes"
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

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// siege is an asylum whose runner lies. Tenant a has a box beside it, which is honest. Each box has
// sessions with one event on the standalone stream.
type siege struct {
	*asylum
	memory *storagetest.Memory
}

const (
	honestBox = storage.BoxID("a/s")
	honestGen = storage.Generation(1)
)

func newSiege(t *testing.T) *siege {
	t.Helper()
	s := &siege{asylum: newAsylum(t)}
	s.memory, s.conn = s.store.Unwrap().(*storagetest.Memory), "conn-x"
	ctx := t.Context()
	commontest.OK(t, s.memory.SaveBox(ctx, storage.Box{
		ID: honestBox, Tenant: "a", Server: "s", State: storage.Awake, Gen: honestGen, Runner: "runner-a", Task: "task-a", Conn: "conn-a", Link: 1,
	}))
	for id, box := range map[storage.ID]storage.BoxID{"s1": asylumBox, "s2": asylumBox, "a1": honestBox, "a2": honestBox} {
		tenant, server := box.Parts()
		if id != "s1" {
			commontest.OK(t, s.memory.Create(ctx, storage.Session{ID: id, Tenant: tenant, Server: server, State: storage.Ready, Expires: time.Now().Add(24 * time.Hour)}))
		}
		commontest.OK(t, s.memory.Append(ctx, storage.Batch{
			Session: id, First: 1, Gen: 1, Seq: 1, Events: [][]byte{[]byte(`{"first":true}`)}, Expires: time.Now().Add(24 * time.Hour),
		}))
	}
	for box, id := range map[storage.BoxID]storage.ID{asylumBox: "s1", honestBox: "a1"} {
		_, err := s.memory.PutItem(ctx, storage.Item{
			Box: box, ID: "waits", State: storage.Waiting, Address: s.address(id, "waits", box), Raw: []byte(`{}`), NotAfter: time.Now().Add(time.Hour),
		})
		commontest.OK(t, err)
	}
	return s
}

func (s *siege) address(id storage.ID, stream storage.StreamID, box storage.BoxID) storage.Address {
	return storage.Address{Session: id, Stream: stream, Box: box, Digest: "digest", Requests: []json.RawMessage{json.RawMessage("1")}}
}

func (s *siege) ticket(id storage.ID, stream storage.StreamID, box storage.BoxID, gen storage.Generation) string {
	return s.config.Sealer.Seal(s.address(id, stream, box), gen)
}

// events returns a batch of the hostile box with one event.
func (s *siege) events(id storage.ID, stream storage.StreamID, first storage.Index, ticket string) frametest.Frame {
	return frametest.Frame{
		Type: frame.TypeEvents, Box: asylumBox, Gen: asylumGen, Seq: 9, Session: id, Payload: []byte(`{"evil":true}`),
		Items: []frame.EventItem{{Ticket: ticket, Stream: stream, First: first, Lens: []int{13}}},
	}
}

// part is a part of a frame of the hostile box, and whole the frame that joins it.
func (s *siege) part(name string, n int64, payload string) frametest.Frame {
	return s.from(frame.TypePart, func(f *frametest.Frame) { f.Frame, f.N, f.Of, f.Payload = name, n, 1, []byte(payload) })
}

func (s *siege) whole(name string, of int) frametest.Frame {
	return s.from(frame.TypeWhole, func(f *frametest.Frame) { f.Frame, f.Of = name, of })
}

// uses returns the frames that a ticket of a session is for: events of its stream and of the
// session, a mark, and a handshake.
func (s *siege) uses(id storage.ID, ticket string) []frametest.Frame {
	return []frametest.Frame{
		s.events(id, "d1", 1, ticket),
		s.events(id, storage.Standalone, 2, ticket),
		s.from(frame.TypeTaken, func(f *frametest.Frame) { f.Tickets = []string{ticket} }),
		s.from(frame.TypeStatus, func(f *frametest.Frame) { f.Ticket, f.Payload = ticket, []byte(`{}`) }),
	}
}

// gainsNothing handles messages and checks that they have no effect: nothing is written or
// posted, and the answer is none, an error, a fence, or an ack of nothing.
func (s *siege) gainsNothing(what string, frames ...frametest.Frame) {
	s.t.Helper()
	for _, f := range frames {
		s.meansNothing(fmt.Sprintf("%s, a frame %q", what, f.Type), frametest.Encode(f))
	}
}

func (s *siege) meansNothing(what string, data []byte) {
	s.t.Helper()
	s.store.Reset()
	s.posts, s.to = nil, nil
	f, err := s.raw(data)
	if n := s.store.Counts(); n.Writes > 0 || len(s.posts) > 0 {
		s.t.Errorf("%s has an effect: it wrote %v and posted %d frames", what, n.Calls, len(s.posts))
	}
	switch {
	case err != nil && (storage.CodeOf(err) != storage.Invalid || len(err.Error()) > 300):
		s.t.Errorf("%s: %.300v", what, err)
	case f.Type == frame.TypeAck && f.Next == 0, f.Type == frame.TypeFenced, f.Type == "":
	default:
		s.t.Errorf("%s is answered with the frame %q; want none, a fence, or an ack of nothing", what, f.Type)
	}
}

// isFenced is gainsNothing for frames whose answer must be a fence.
func (s *siege) isFenced(what string, frames ...frametest.Frame) {
	s.t.Helper()
	for _, f := range frames {
		s.gainsNothing(what, f)
		if reply, err := s.say(f); err != nil || reply.Type != frame.TypeFenced {
			s.t.Errorf("%s: a frame %q is answered with %q, %v; want a fence", what, f.Type, reply.Type, err)
		}
	}
}

func TestForgedTicketIsWorthNothing(t *testing.T) {
	s := newSiege(t)
	real := s.ticket("s1", "d1", asylumBox, asylumGen)
	changed, err := base64.RawURLEncoding.DecodeString(real)
	commontest.OK(t, err)
	changed[0] ^= 1
	for what, ticket := range map[string]string{
		"none": "", "not base64": "%%%", "too short": "AAAA", "truncated": real[:len(real)-4], "extended": real + "AAAA", "changed": base64.RawURLEncoding.EncodeToString(changed),
		"of another secret": sealerOf(t, 8).Seal(s.address("s1", "d1", asylumBox), asylumGen),
		"unsealed":          base64.RawURLEncoding.EncodeToString([]byte(`{"s":"s1","d":"d1","b":"t/s","g":3,"e":99999999999}`)),
		"a pass":            s.config.Sealer.Pass(asylumBox),
	} {
		s.gainsNothing("a forged ticket, "+what, s.uses("s1", ticket)...)
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSiege(t)
		old := s.ticket("s1", "d1", asylumBox, asylumGen)
		time.Sleep(7*24*time.Hour + time.Second)
		s.gainsNothing("an old ticket", s.uses("s1", old)...)
	})
}

func TestTicketFitsNothingElse(t *testing.T) {
	s := newSiege(t)
	mine, foreign := s.ticket("s1", "d1", asylumBox, asylumGen), s.ticket("a1", "d1", honestBox, honestGen)
	changed := func(frames []frametest.Frame, change func(*frametest.Frame)) []frametest.Frame {
		for i := range frames {
			change(&frames[i])
		}
		return frames
	}
	as := func(box storage.BoxID) func(*frametest.Frame) { return func(f *frametest.Frame) { f.Box = box } }
	in := func(gen storage.Generation) func(*frametest.Frame) { return func(f *frametest.Frame) { f.Gen = gen } }
	for what, frames := range map[string][]frametest.Frame{
		"another session":                      s.uses("s2", mine)[:2],
		"a foreign session":                    s.uses("a1", mine)[:2],
		"another request stream":               {s.events("s1", "d2", 1, mine)},
		"a ticket of another box":              s.uses("a1", foreign),
		"a ticket of another box, as of none":  changed(s.uses("a1", foreign), as("")),
		"a ticket of another box, as like it":  changed(s.uses("a1", foreign), as("a/S")),
		"a ticket of another box, as below it": changed(s.uses("a1", foreign), as("a/s/")),
		"own ticket in another box's name":     changed(s.uses("s1", mine)[:1], as(honestBox)),
		"a ticket of a newer generation":       s.uses("s1", s.ticket("s1", "d1", asylumBox, asylumGen+1))[:3],
		"a newer generation":                   changed(s.uses("s1", mine)[:3], in(asylumGen+1)),
		"the newest generation":                changed(s.uses("s1", mine)[:3], in(math.MaxInt64)),
		// If a delivery needs no end, its mark would be an item that no function can end.
		"no requests": s.uses("s1", s.config.Sealer.Seal(storage.Address{Session: "s1", Stream: "d1", Box: asylumBox}, asylumGen))[2:3],
		// A frame with one bad item is refused, even if its other items are good.
		"a second item with a stream not its own": changed(s.uses("s1", mine)[:1], func(f *frametest.Frame) {
			f.Items = append(f.Items, frame.EventItem{Ticket: mine, Stream: "d2", First: 1, Lens: []int{13}})
			f.Payload = bytes.Repeat(f.Payload, 2)
		}),
	} {
		s.gainsNothing(what, frames...)
	}
}

// With an old ticket of its own, a box can only write to those indexes of its own streams
// that are still free.
func TestReplayedTicketDoesNotChangeWhatIsWritten(t *testing.T) {
	s := newSiege(t)
	old := s.ticket("s1", "d1", asylumBox, asylumGen-1)
	end := storage.Batch{
		Session: "s1", Stream: "d1", First: 1, Final: true, Events: [][]byte{[]byte(`{"end":true}`)}, Expires: time.Now().Add(time.Hour),
	}
	commontest.OK(t, s.memory.Append(t.Context(), end))
	before := s.memory.Batches()
	commontest.EqualIn(t, "closed connections", 1, len(s.handle(s.events("s1", "d1", 1, old)).Closed))
	if f := s.handle(s.events("s1", storage.Standalone, 1, old)); !f.Fenced {
		t.Errorf("answered with %+v", f)
	}
	commontest.Same(t, before, s.memory.Batches())
}

// Connections of one runner may say hello in another order than they were opened.
func TestAnOvertakenHelloChangesNothing(t *testing.T) {
	a := newAsylum(t)
	a.changes(func(b *storage.Box) { b.Link = 5 })
	before := a.box()
	for _, link := range []int64{4, 5} {
		a.handle(a.from(frame.TypeHello, func(f *frametest.Frame) { f.Link, f.Task = link, "task" }))
	}
	commontest.Same(t, before, a.box())
}

func TestHelloThatIsNotTheRunnersIsFenced(t *testing.T) {
	s := newSiege(t)
	hello := func(set func(*frametest.Frame)) frametest.Frame {
		f := frametest.Frame{Type: frame.TypeHello, Box: honestBox, Gen: honestGen, Runner: "r", Link: 2, Task: "task"}
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
		for what, set := range map[string]func(*frametest.Frame){
			"another runner":         func(*frametest.Frame) {},
			"no runner":              func(f *frametest.Frame) { f.Runner = "" },
			"a token":                func(f *frametest.Frame) { f.Token = "guess" },
			"a token and no runner":  func(f *frametest.Frame) { f.Token, f.Runner = "guess", "" },
			"the hash for the token": func(f *frametest.Frame) { f.Token = strings.Repeat("0", 64) },
			"a generation ahead":     func(f *frametest.Frame) { f.Gen++ },
			"a link far ahead":       func(f *frametest.Frame) { f.Link = math.MaxInt64 },
			"a box that nobody has":  func(f *frametest.Frame) { f.Box = "x/y" },
			"no box":                 func(f *frametest.Frame) { f.Box, f.Runner = "", "" },
		} {
			s.isFenced(fmt.Sprintf("box %q, %s", state, what), hello(set))
		}
	}
}

func TestFramesThatMakeNoSenseAreRefused(t *testing.T) {
	s := newSiege(t)
	ticket := s.ticket("s1", "d1", asylumBox, asylumGen)
	long := strings.Repeat("x", 5000)
	lens := func(lens ...int) frametest.Frame {
		f := s.events("s1", "d1", 1, ticket)
		f.Items[0].Lens = lens
		return f
	}
	crowd := lens(slices.Repeat([]int{2}, storage.MaxBatchEvents+1)...)
	crowd.Payload = bytes.Repeat([]byte("{}"), storage.MaxBatchEvents+1)
	s.meansNothing("no frame", []byte("hello"))
	for what, f := range map[string]frametest.Frame{
		"an unknown type":        s.from("give-me-all"),
		"a type of the host":     s.from(frame.TypeWelcome, func(f *frametest.Frame) { f.Box, f.Gen = honestBox, 99 }),
		"a deliver":              {Type: frame.TypeDeliver, Box: honestBox, Session: "a1", ID: "d9", Lens: []int{0, 2}, Payload: []byte("{}")},
		"no lengths":             lens(),
		"negative and positive":  lens(-13, 26),
		"a length too short":     lens(12, 2),
		"many that overflow":     lens(1<<62, 1<<62, 1<<62, 1<<62, 13),
		"a negative index":       s.events("s1", "d1", -1, ticket),
		"whole of nothing":       s.whole("0.x", 1),
		"a part too long":        s.part("0.x", 0, strings.Repeat("x", 1<<20)),
		"a part far behind":      s.part("0.x", 1<<40, "x"),
		"a part of no frame":     s.part("", 0, "x"),
		"a part of no box":       {Type: frame.TypePart, Link: 1, Frame: "0.x", Of: 1, Payload: []byte("x")},
		"more items than events": crowd,
		"more tickets than any":  s.from(frame.TypeTaken, func(f *frametest.Frame) { f.Tickets = slices.Repeat([]string{ticket}, storage.MaxBatchEvents+1) }),
		"a task without end":     s.from(frame.TypeHello, func(f *frametest.Frame) { f.Link, f.Task = 99, long[:1000] }),
		"a long box":             s.from(frame.TypeHello, func(f *frametest.Frame) { f.Box = storage.BoxID(long) }),
	} {
		s.gainsNothing(what, f)
	}
}

// A box is asked for the index of its events. A hostile one must not leave a stream in which
// no index is free for the runner after it.
func TestARunnerCannotUseUpTheIndexesOfAStream(t *testing.T) {
	s := newSiege(t)
	for _, first := range []storage.Index{math.MaxInt64, 1<<53 + 1} {
		_, err := s.say(s.events("s1", storage.Standalone, first, s.ticket("s1", "d1", asylumBox, asylumGen)))
		commontest.EqualIn(t, "a great index", storage.Invalid, storage.CodeOf(err))
	}
}

func TestOnlyTheRunnersOwnConnectionWritesToTheHostsLog(t *testing.T) {
	s := newSiege(t)
	var log bytes.Buffer
	s.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	say := func(conn string, box storage.BoxID, detail string) {
		s.conn = conn
		s.handle(s.from(frame.TypeStatus, func(f *frametest.Frame) {
			f.Box, f.Session, f.Process, f.Phase, f.Detail = box, "s1", "p1", "runtime", detail
		}))
	}
	say("conn-x", asylumBox, "from nobody")
	say("c", honestBox, "of another box")
	commontest.EqualIn(t, "the log of strangers", "", log.String())
	say("c", asylumBox, strings.Repeat("loud ", 20_000))
	if got := log.String(); !strings.Contains(got, "loud") || len(got) > 2000 {
		t.Errorf("logged %d bytes: %.200s", len(got), got)
	}
}

func TestJoinedFrameHasNoMorePowerThanAnother(t *testing.T) {
	s := newSiege(t)
	for n, inner := range []frametest.Frame{
		{Type: frame.TypePull, Box: honestBox, Gen: honestGen, Runner: "r", N: 1},
		{Type: frame.TypePull, Box: honestBox, Gen: honestGen, Runner: "runner-a", N: 1}, // it may know the other's id
		{Type: frame.TypeBye, Box: honestBox, Gen: honestGen, Runner: "r", Link: 1},
		s.whole("0.a", 1),
		{Type: frame.TypePart, Box: honestBox, Frame: "0.a", Of: 1, Payload: []byte("x")},
		s.events("a1", storage.Standalone, 2, s.ticket("a1", "d1", honestBox, honestGen)),
		// The host reads questions one by one, so one frame must not have more questions
		// than fit into one message.
		s.from(frame.TypeHello, func(f *frametest.Frame) { f.Link, f.Questions = 7, map[storage.ID][]string{"s1": {"q"}} }),
	} {
		name := fmt.Sprintf("%d.a", n)
		s.handle(s.part(name, 0, string(frametest.Encode(inner))))
		s.gainsNothing("a joined frame "+string(inner.Type), s.whole(name, 1))
	}
}

func TestFloodOfPartsIsBounded(t *testing.T) {
	s := newSiege(t)
	places := map[string]bool{}
	for n := range 300 {
		for _, name := range []string{fmt.Sprintf("%d.n%d", n%100, n), fmt.Sprintf("f%d", n)} {
			_, _ = s.say(s.part(name, 0, "x"))
		}
	}
	for n := range 300 {
		for _, name := range []string{fmt.Sprint(n), fmt.Sprintf("%d.n%d", n%100, n), fmt.Sprintf("f%d", n)} {
			parts, err := s.memory.Parts(t.Context(), asylumBox, name)
			commontest.OK(t, err)
			for _, p := range parts {
				places[fmt.Sprint(name, p.N)] = true
			}
		}
	}
	if len(places) == 0 || len(places) > frame.MaxTransfers {
		t.Errorf("%d parts are stored", len(places))
	}
}

func TestPartsOfAnOlderFrameInThePlaceDoNotCount(t *testing.T) {
	s := newSiege(t)
	for _, f := range []frametest.Frame{s.part("3.old", 0, "x"), s.part("3.old", 1, "y"), s.part("3.new", 0, string(frametest.Encode(s.from(frame.TypeHello))))} {
		if reply := s.handle(f); reply.Type != frame.TypePartOK || reply.Frame != f.Frame {
			t.Fatalf("answered with %+v", reply)
		}
	}
	commontest.EqualIn(t, "the newer frame is answered with", frame.TypeWelcome, s.handle(s.whole("3.new", 1)).Type)
	s.gainsNothing("the older frame", s.whole("3.old", 2))
}

func TestAnswersOfAForeignSessionAreNotGivenAway(t *testing.T) {
	s := newSiege(t)
	for _, id := range []storage.ID{"a1", "s1"} {
		_, err := s.memory.PutAnswer(t.Context(), storage.Answer{Session: id, Question: "q", Raw: []byte(`{"secret":"` + id + `"}`), Expires: time.Now().Add(time.Hour)})
		commontest.OK(t, err)
	}
	hello := s.from(frame.TypeHello, func(f *frametest.Frame) {
		f.Questions = map[storage.ID][]string{"a1": {"q"}, "s1": {"q"}, "nobody": {"q"}}
	})
	commontest.EqualIn(t, "answered with", frame.TypeWelcome, s.handle(hello).Type)
	commontest.Same(t, []string{"conn-x"}, s.to)
	commontest.Equal(t, `{"secret":"s1"}`, string(s.posted(frame.TypeAnswer)[0].Payload))
}

func TestAHelloOfManySessionsCostsNoMoreReadsThanABatchHasEvents(t *testing.T) {
	s := newSiege(t)
	questions := map[storage.ID][]string{}
	for i := range 10_000 {
		questions[storage.ID(strconv.Itoa(i))] = nil
	}
	s.store.Reset()
	s.handle(s.from(frame.TypeHello, func(f *frametest.Frame) { f.Questions = questions }))
	if n := s.store.Counts().Reads; n > storage.MaxBatchEvents+1 {
		t.Errorf("%d reads", n)
	}
}

// staleSiege is a siege in which the hostile box has a newer generation, whose
// runner has written to session m1.
func staleSiege(t *testing.T) *siege {
	t.Helper()
	s := newSiege(t)
	b, err := s.memory.Box(t.Context(), asylumBox)
	commontest.OK(t, err)
	b.Gen, b.Lost, b.Runner, b.Conn = asylumGen+1, asylumGen, "runner-n", "conn-n"
	commontest.OK(t, s.memory.SaveBox(t.Context(), b))
	newer := s.events("s1", storage.Standalone, 0, s.ticket("s1", "d2", asylumBox, asylumGen+1))
	newer.Gen, newer.Seq = asylumGen+1, 1
	commontest.EqualIn(t, "the newer runner goes on at", 3, s.handle(newer).Next)
	return s
}

// A fenced frame adds none of its events to the log. The calls of the stale runner end with an
// error from the host.
func TestStaleRunnerIsFencedByItsFirstWrite(t *testing.T) {
	for _, first := range []storage.Index{0, 2} { // it knows the next index, or not
		s := staleSiege(t)
		before := s.memory.Batches()
		stale := s.events("s1", storage.Standalone, first, s.ticket("s1", "d1", asylumBox, asylumGen))
		end := wire.ResultResponse([]byte("1"), []byte(`{"evil":2}`))
		stale.Items = append(stale.Items, frame.EventItem{Ticket: stale.Items[0].Ticket, Stream: "d1", First: 1, Final: true, Lens: []int{len(end)}})
		stale.Payload = append(stale.Payload, end...)
		if f := s.handle(stale); !f.Fenced {
			t.Errorf("the stale runner is answered with %+v", f)
		}
		commontest.Same(t, before, s.memory.Batches())
	}
}

func TestStaleRunnerIsFencedByWhateverElseItSays(t *testing.T) {
	s := staleSiege(t)
	next := func(f *frametest.Frame) { f.Link = 2 }
	s.isFenced("stale", s.from(frame.TypeHello), s.from(frame.TypeHello, next), s.from(frame.TypePull), s.from(frame.TypeBye), s.part("0.a", 0, "x"))
}

func TestHostRefusesAnotherVersionAndTakesTheNextFrame(t *testing.T) {
	s := newSiege(t)
	for _, v := range []string{"2", "-1", "99999"} {
		s.meansNothing("version "+v, frametest.EncodeAs(v, s.from(frame.TypeHello)))
		if _, err := s.raw(frametest.EncodeAs(v, s.from(frame.TypeHello))); err == nil || !strings.Contains(err.Error(), "has version "+v) {
			t.Errorf("version %s: %v", v, err)
		}
	}
	commontest.EqualIn(t, "the next is answered with", frame.TypeWelcome, s.handle(s.from(frame.TypeHello)).Type)
}

// A hostile box may answer initialize with anything. The relay function keeps the answer
// only for the box's own tenant, and only under a known protocol version.
func TestHandshakeIsKeptForItsOwnTenantAndVersionsOnly(t *testing.T) {
	s := newSiege(t)
	own := storage.RecordFor("t", "d")
	ticket := s.config.Sealer.Seal(storage.Address{Session: "s1", Stream: "d1", Box: asylumBox, Digest: own}, asylumGen)
	for _, detail := range []string{wire.V20251125, "2099-01-01", "", "tools/list " + wire.V20251125 + " "} {
		s.handle(s.from(frame.TypeStatus, func(f *frametest.Frame) {
			f.Session, f.Ticket, f.Detail, f.Payload = "s1", ticket, detail, []byte(`{"evil":1}`)
		}))
		for _, record := range []string{own, storage.RecordFor("h", "d"), "d"} {
			_, err := s.memory.Handshake(t.Context(), record, detail)
			if kept, want := err == nil, record == own && detail == wire.V20251125; kept != want {
				t.Errorf("record %s of %q: %v", record, detail, err)
			}
		}
	}
}
