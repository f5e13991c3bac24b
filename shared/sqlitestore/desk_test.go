package sqlitestore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// marked is a stream that begins in a store.
func marked(t *testing.T, s *Store) session.StreamID {
	t.Helper()
	mark := s.Mark()
	if mark == "" {
		t.Fatal("the store has no mark")
	}
	return session.NewMarkedStreamID(mark)
}

func wantRing(t *testing.T, what string, w waiter, want bool) {
	t.Helper()
	until := time.Now().Add(10 * time.Millisecond)
	if want {
		until = far()
	}
	if _, rung := w.wait(t.Context(), until); rung != want {
		t.Errorf("%s: rung is not %t", what, want)
	}
}

func TestOneSocketIsRungForAllStreamsWithItsMark(t *testing.T) {
	s := fresh(t)
	writer := again(t, s)
	first, second := marked(t, s), marked(t, s)
	a, b := s.desk.wait("s1", first), s.desk.wait("s1", second)
	defer a.takeDown()
	defer b.takeDown()
	put(t, writer, batch(first, 1, `1`))
	wantRing(t, "its own stream", a, true)
	wantRing(t, "another's stream", b, false)
	put(t, writer, batch(second, 1, `1`))
	wantRing(t, "the second", b, true)
	same(t, "sockets", sockets(t, s), []string{deskName(s.Mark())})
}

func TestWaitReturnsWhatIsWrittenToAMarkedStream(t *testing.T) {
	s := fresh(t)
	writer := again(t, s)
	stream := marked(t, s)
	back := make(chan session.Page, 1)
	go func() {
		p, _ := s.Wait(t.Context(), "s1", stream, 0, far())
		back <- p
	}()
	put(t, writer, batch(stream, 1, `1`))
	same(t, "events", indexes(<-back), []session.Index{1})
}

func TestWhatWasWrittenBeforeTheWaitIsFoundAtOnce(t *testing.T) {
	s := fresh(t)
	writer := again(t, s)
	stream := marked(t, s)
	put(t, writer, batch(stream, 1, `1`))
	for { // the ring is on its way through the socket
		if e := s.desk.wait("s1", stream); !e.quiet {
			e.takeDown()
			break
		}
		stream = marked(t, s)
		put(t, writer, batch(stream, 1, `1`))
	}
	for range 2 { // by who comes back for it as well
		p, err := s.Wait(t.Context(), "s1", stream, 0, far())
		if err != nil || len(p.Events) != 1 {
			t.Fatalf("%v, %v", p, err)
		}
	}
}

func TestOnlyTheFirstWaitForAYoungStreamDoesNotLook(t *testing.T) {
	s := fresh(t)
	stream := marked(t, s)
	quiet := func(stream session.StreamID) bool {
		e := s.desk.wait("s1", stream)
		defer e.takeDown()
		return e.quiet
	}
	if !quiet(stream) {
		t.Error("the first looks for what cannot be there")
	}
	if quiet(stream) {
		t.Error("the second does not look")
	}
	for range maxKeys {
		s.desk.heard.add(string(session.NewStreamID()))
	}
	if quiet(marked(t, s)) {
		t.Error("a desk that has forgotten rings does not look")
	}
}

func TestStreamsOfOthersHaveSocketsOfTheirOwn(t *testing.T) {
	s := fresh(t)
	o := again(t, s)
	stream := marked(t, o) // whose client comes back here
	if e := s.desk.wait("s1", stream); e != nil {
		t.Error("another's stream is waited for at this desk")
	}
	b := s.bells.hang("s1", stream)
	defer b.takeDown()
	put(t, o, batch(stream, 1, `1`))
	rings(t, "Append", b, true)
}

func TestWhoWaitsElsewhereIsRungByTheDesk(t *testing.T) {
	s := fresh(t)
	other, writer := again(t, s), again(t, s)
	for name, w := range map[string]*Store{"written where it began": s, "written elsewhere": writer} {
		stream := marked(t, s)
		b := other.bells.hang("s1", stream) // its client came back there
		put(t, w, batch(stream, 1, `1`))
		rings(t, name, b, true)
		b.takeDown()
	}
}

func TestWhoWaitsForAStreamOfADeadProcessIsRungByItsWriter(t *testing.T) {
	s := fresh(t)
	o := again(t, s)
	stream := marked(t, o)
	b := s.bells.hang("s1", stream)
	defer b.takeDown()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, again(t, s), batch(stream, 1, `1`))
	rings(t, "Append", b, true)
	same(t, "rings", b.rings(), true)
}

func TestADeskForgetsWhoWaitsElsewhereUnlessItIsToldAgain(t *testing.T) {
	var r recent
	r.add("a")
	r.turned = time.Now().Add(-2 * memory)
	r.add("b")
	same(t, "both", []bool{r.has("a"), r.has("b")}, []bool{true, true})
	r.turned = time.Now().Add(-2 * memory)
	r.add("b")
	same(t, "the one that was added again", []bool{r.has("a"), r.has("b")}, []bool{false, true})
}

func TestAStoreThatIsClosedLeavesNoSocket(t *testing.T) {
	s := fresh(t)
	o := again(t, s)
	_ = o.Mark()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, "sockets", sockets(t, s), []string(nil))
}

func TestSweepRemovesTheSocketOfAKilledProcess(t *testing.T) {
	s := fresh(t)
	living := s.Mark()
	name := filepath.Join(s.bells.dir, deskName("killed"))
	dead(t, name)
	long := time.Now().Add(-time.Hour)
	for _, n := range sockets(t, s) {
		if err := os.Chtimes(filepath.Join(s.bells.dir, n), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "sockets", sockets(t, s), []string{deskName(living)})
}

func TestNoRingOfManyIsLost(t *testing.T) {
	s := fresh(t)
	writer := again(t, s)
	const waiters = 64 // more than a socket keeps
	var all [waiters]*deskBell
	var streams [waiters]session.StreamID
	for i := range all {
		streams[i] = marked(t, s)
		all[i] = s.desk.wait("s1", streams[i])
		defer all[i].takeDown()
	}
	for _, stream := range streams {
		writer.ring("s1", stream, ring{})
	}
	for i, w := range all {
		wantRing(t, string(streams[i]), w, true)
	}
}
