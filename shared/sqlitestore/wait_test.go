package sqlitestore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

func far() time.Time { return time.Now().Add(time.Minute) }

// hung is a bell on stream "r1" of "s1" that is taken down with the test.
func hung(t *testing.T, s *Store) bell {
	t.Helper()
	b := s.bells.hang("s1", "r1")
	t.Cleanup(b.takeDown)
	return b
}

func rings(t *testing.T, what string, b bell, want bool) {
	t.Helper()
	until := time.Now().Add(10 * time.Millisecond)
	if want {
		until = far()
	}
	if _, rung := b.wait(t.Context(), until); rung != want {
		t.Errorf("%s: rung is not %t", what, want)
	}
}

func sockets(t *testing.T, s *Store) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.bells.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestWritesRingThoseWhoWait(t *testing.T) {
	s := fresh(t)
	b, writer := hung(t, s), again(t, s)
	put(t, writer, batch("r1", 1, `1`))
	rings(t, "Append", b, true)
	put(t, writer, batch("r1", 1, `1`))
	rings(t, "Append of what is there", b, true)
	it := session.Item{Box: "b", ID: "r1", State: session.Waiting, Address: session.Address{Session: "s1"}}
	if _, err := writer.PutItem(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	rings(t, "PutItem", b, true)
	if _, err := writer.Claim(t.Context(), "b", "r1", 1); err != nil {
		t.Fatal(err)
	}
	rings(t, "Claim", b, true)
	put(t, writer, batch("r2", 1, `1`), batch(session.Common, 1, `1`))
	if _, err := writer.Claim(t.Context(), "b", "r1", 2); err == nil {
		t.Fatal("claimed twice")
	}
	rings(t, "what is none of its business", b, false)
}

func TestARingBeforeTheWaitIsKept(t *testing.T) {
	s := fresh(t)
	b := hung(t, s)
	for range 1000 { // more than any socket holds
		s.ring("s1", "r1", ring{})
	}
	rings(t, "ring before the wait", b, true)
}

func TestFourWaitersOfAStreamAreRungAndAFifthIsNot(t *testing.T) {
	s := fresh(t)
	o := again(t, s)
	bells := []bell{hung(t, s), hung(t, o), hung(t, s), hung(t, o)}
	if fifth := hung(t, s); fifth.conn != nil {
		t.Error("a fifth waiter has a socket")
	}
	put(t, s, batch("r1", 1, `1`))
	for i, b := range bells {
		rings(t, fmt.Sprint("waiter ", i), b, true)
	}
}

func TestAWaiterThatLeavesSendsTheOthersToItsPlace(t *testing.T) {
	s := fresh(t)
	first, second := s.bells.hang("s1", "r1"), hung(t, s)
	same(t, "slots", []int{first.slot, second.slot}, []int{0, 1})
	first.takeDown()
	rings(t, "the second waiter", second, true)
}

func TestManyWaitersOfAStreamAllReturn(t *testing.T) {
	s := fresh(t)
	const waiters = 8
	back := make(chan error, waiters)
	for range waiters {
		go func() {
			for {
				p, err := s.Wait(t.Context(), "s1", "r1", 0, far())
				if err != nil || len(p.Events) > 0 {
					back <- err
					return
				}
			}
		}()
	}
	put(t, s, batch("r1", 1, `1`))
	for range waiters {
		if err := <-back; err != nil {
			t.Fatal(err)
		}
	}
	same(t, "sockets left", sockets(t, s), []string(nil))
}

func TestWaitLeavesNoSocket(t *testing.T) {
	s := fresh(t)
	if _, err := s.Wait(t.Context(), "s1", "r1", 0, time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	same(t, "sockets", sockets(t, s), []string(nil))
}

// dead is the socket of a waiter that was killed.
func dead(t *testing.T, name string) {
	t.Helper()
	conn, err := bind(name)
	if err == nil {
		err = conn.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheSocketOfADeadWaiterIsTakenOver(t *testing.T) {
	s := fresh(t)
	name := s.bells.name("s1", "r1")
	dead(t, slotName(name, 0))
	dead(t, slotName(name, 1))
	b := hung(t, s)
	same(t, "slot", b.slot, 0)
	put(t, s, batch("r1", 1, `1`))
	rings(t, "Append", b, true)
	second := hung(t, s)
	same(t, "slot of the second", second.slot, 1)
}

func TestALivingWaiterBehindADeadOneIsRung(t *testing.T) {
	s := fresh(t)
	first, second := s.bells.hang("s1", "r1"), hung(t, s)
	if err := first.conn.Close(); err != nil { // killed: its socket stays
		t.Fatal(err)
	}
	put(t, s, batch("r1", 1, `1`))
	rings(t, "the second waiter", second, true)
}

func TestALivingWaiterIsNotPushedOut(t *testing.T) {
	s := fresh(t)
	first := hung(t, s)
	_ = hung(t, again(t, s))
	rings(t, "the first waiter, by the arrival of the second", first, false)
	put(t, s, batch("r1", 1, `1`))
	rings(t, "the first waiter", first, true)
}

func TestSweepRemovesSocketsOfDeadWaitersOnly(t *testing.T) {
	s := fresh(t)
	_ = hung(t, s)
	living := filepath.Base(slotName(s.bells.name("s1", "r1"), 0))
	recent := filepath.Base(slotName(s.bells.name("s1", "r3"), 0))
	dead(t, slotName(s.bells.name("s1", "r2"), 0))
	long := time.Now().Add(-time.Hour)
	for _, name := range sockets(t, s) {
		if err := os.Chtimes(filepath.Join(s.bells.dir, name), long, long); err != nil {
			t.Fatal(err)
		}
	}
	dead(t, slotName(s.bells.name("s1", "r3"), 0)) // perhaps about to be bound
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := strings.Join(sockets(t, s), " ")
	if !strings.Contains(left, living) || !strings.Contains(left, recent) || len(sockets(t, s)) != 2 {
		t.Errorf("sockets left: %s; want %s and %s", left, living, recent)
	}
}

func TestWaitMakesItsFolderAnew(t *testing.T) {
	s := fresh(t)
	if err := os.RemoveAll(s.bells.dir); err != nil {
		t.Fatal(err)
	}
	b := hung(t, s)
	put(t, s, batch("r1", 1, `1`))
	rings(t, "Append", b, true)
}

func TestWaitWithoutAnySocketReadsByItself(t *testing.T) {
	s := fresh(t)
	if err := os.RemoveAll(s.bells.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.bells.dir, nil, 0o600); err != nil { // no folder can be made
		t.Fatal(err)
	}
	back := make(chan session.Page, 1)
	go func() {
		p, _ := s.Wait(t.Context(), "s1", "r1", 0, far())
		back <- p
	}()
	put(t, s, batch("r1", 1, `1`))
	same(t, "events", indexes(<-back), []session.Index{1})
}

func TestSocketsOfALongPathAreElsewhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	s := open(t, filepath.Join(dir, "store.db"))
	defer func() { _ = s.Close() }()
	t.Cleanup(func() { _ = os.Remove(s.bells.dir) })
	name := slotName(s.bells.name("s1", "r1"), 3)
	if len(name) > maxSocketPath {
		t.Errorf("the socket %s has %d bytes", name, len(name))
	}
	info, err := os.Stat(s.bells.dir)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "mode of the folder", info.Mode().Perm(), os.FileMode(0o700))
	b := hung(t, s)
	put(t, again(t, s), batch("r1", 1, `1`))
	rings(t, "Append", b, true)
}

func TestSocketsAreTheSameForEveryNameOfTheFile(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "store.db"))
	defer func() { _ = s.Close() }()
	for link, target := range map[string]string{filepath.Join(dir, "folder"): dir, filepath.Join(t.TempDir(), "link.db"): s.path} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if target == dir {
			link = filepath.Join(link, "store.db")
		}
		o := open(t, link)
		same(t, "name", o.bells.name("s1", "r1"), s.bells.name("s1", "r1"))
		_ = o.Close()
	}
}

func TestStoresInOneFolderDoNotRingOneAnother(t *testing.T) {
	s := fresh(t)
	o := open(t, filepath.Join(filepath.Dir(s.path), "other.db"))
	defer func() { _ = o.Close() }()
	b := hung(t, s)
	put(t, o, batch("r1", 1, `1`))
	rings(t, "Append to the other store", b, false)
}

func TestAFolderThatIsNoneIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "w")); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(dir, "store.db"))
	wantCode(t, "Open", err, session.Unavailable)
}
