package sqlitestore

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// chaos makes the experiments with disks try everything.
var chaos = flag.Bool("chaos", false, "try every fault at every call of the disk, which takes minutes")

func TestAStoreWithoutRoomSaysSoBeforeItFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	synctest.Test(t, func(t *testing.T) {
		free, asked := uint64(leastFree), 0
		s := open(t, path, Options{space: func(string) room { asked++; return room{free, 75e9, true} }})
		defer func() { _ = s.Close() }()
		commontest.OKIn(t, "Writable", s.Writable(t.Context()))
		free = 1_500_000
		for range 1000 {
			commontest.OKIn(t, "Writable within the same second", s.Writable(t.Context()))
		}
		commontest.SameIn(t, "how often the disk was asked", 1, asked)
		<-time.After(spaceEvery)
		err := s.Writable(t.Context())
		wantCode(t, "Writable", err, storage.Unavailable)
		want := fmt.Sprintf("the disk of %s is full (1.5 MB of 75.0 GB free): free some room, or move the data and name the folder with --data; nothing was lost", filepath.Dir(s.path))
		commontest.SameIn(t, "error", want, err.Error())
		commontest.SameIn(t, "is for the operator", true, storage.IsForOperator(err))
		put(t, s, batch("r1", 1, `1`)) // writes in progress have room
		free = leastFree
		<-time.After(spaceEvery)
		commontest.OKIn(t, "Writable with room again", s.Writable(t.Context()))
	})
}

// Nobody waits for what a disk cannot store. What is stored is still read, and when the disk
// works again a Wait waits.
func TestADiskThatFailsEndsThoseWhoWait(t *testing.T) {
	dir := t.TempDir()
	d, o := newDisk(t, dir)
	free := uint64(1 << 40)
	o.space = func(string) room { return room{free, 1 << 41, true} }
	synctest.Test(t, func(t *testing.T) {
		s := open(t, filepath.Join(dir, "store.db"), o)
		defer func() { _ = s.Close() }()
		put(t, s, batch("r1", 1, `1`))
		d.setBefore(func(diskCall) int32 { return sqlite3.SQLITE_FULL })
		begun := time.Now()
		wantCode(t, "Append", s.Append(t.Context(), batch("r1", 2, `2`)), storage.Unavailable)
		_, err := s.Wait(t.Context(), "s1", "r1", 1, time.Now().Add(time.Hour))
		wantCode(t, "Wait", err, storage.Unavailable)
		if took := time.Since(begun); took < waitFailed || took > waitFailed+2*time.Second {
			t.Errorf("Wait has taken %s", took)
		}
		p, err := s.Wait(t.Context(), "s1", "r1", 0, time.Now().Add(time.Hour))
		commontest.OKIn(t, "Wait for what is stored", err)
		commontest.SameIn(t, "events", 1, len(p.Events))
		d.setBefore(nil)
		free = 1 << 20
		<-time.After(spaceEvery)
		wantCode(t, "Writable", s.Writable(t.Context()), storage.Unavailable) // its own small write succeeds
		_, err = s.Wait(t.Context(), "s1", "r1", 1, time.Now().Add(time.Hour))
		wantCode(t, "Wait without room", err, storage.Unavailable)
		free = 1 << 40
		<-time.After(spaceEvery)
		commontest.OKIn(t, "Writable", s.Writable(t.Context()))
		put(t, s, batch("r2", 1, `1`))
		begun = time.Now()
		_, err = s.Wait(t.Context(), "s1", "r1", 1, time.Now().Add(time.Minute))
		commontest.OKIn(t, "Wait after", err)
		commontest.SameIn(t, "time", time.Minute, time.Since(begun))
	})
}

// sickness is a fault of a disk. It begins at one of the disk's calls and lasts for a
// time.
type sickness struct {
	name string
	on   diskVerb
	code int32
	slow time.Duration
}

// tally counts the results of calls beside a failing disk.
type tally struct {
	mu                                   sync.Mutex
	executed, answered, unknown, refused int
	kept                                 []storage.StreamID // streams of the answered calls
	late                                 time.Duration      // time until the first answer after the fault had ended
}

// TestFullAndSlowDisk makes a disk fail, or delay, from each of its calls on. Every
// executed call must get its answer, except those in flight when the fault began. The
// store must refuse all other calls until the disk works again, and then go on.
func TestFullAndSlowDisk(t *testing.T) {
	step, lasting := 19, []time.Duration{time.Second}
	if *chaos {
		step, lasting = 1, []time.Duration{time.Second, 30 * time.Second, 2 * time.Minute}
	}
	for _, ill := range []sickness{
		{"ENOSPC", diskWrite, sqlite3.SQLITE_FULL, 0},
		{"EIO", diskWrite, sqlite3.SQLITE_IOERR_WRITE, 0},
		{"EIO of fsync", diskSync, sqlite3.SQLITE_IOERR_FSYNC, 0},
		{"fsync takes 200 ms", diskSync, sqlite3.SQLITE_OK, 200 * time.Millisecond},
	} {
		t.Run(ill.name, func(t *testing.T) {
			var all tally
			runs := 0
			for _, d := range lasting {
				for first := 0; first < 80; first += step {
					one := beside(t, ill, first, d)
					runs++
					all.executed += one.executed
					all.answered += one.answered
					all.unknown += one.unknown
					all.refused += one.refused
					all.late = max(all.late, one.late)
				}
			}
			t.Logf("%d times for %v: %d calls executed, %d answered, %d not known, %d refused before; the first answer came %s after the disk was well",
				runs, lasting, all.executed, all.answered, all.unknown, all.refused, all.late)
		})
	}
}

// sickCallers is how many goroutines make calls at the same time.
const sickCallers = 4

// beside makes calls while a disk is faulty for a time, beginning with its call number
// first.
func beside(t *testing.T, ill sickness, first int, lasting time.Duration) *tally {
	t.Helper()
	dir := t.TempDir()
	d, o := newDisk(t, dir)
	d.lax = true
	n := &tally{}
	synctest.Test(t, func(t *testing.T) {
		s := open(t, filepath.Join(dir, "store.db"), o)
		var mu sync.Mutex
		var from, until time.Time
		calls := 0
		d.setBefore(func(c diskCall) int32 {
			mu.Lock()
			if calls++; calls > first && from.IsZero() {
				from, until = time.Now(), time.Now().Add(lasting)
			}
			sick := !from.IsZero() && time.Now().Before(until) && c.do == ill.on
			mu.Unlock()
			if !sick {
				return sqlite3.SQLITE_OK
			}
			time.Sleep(ill.slow)
			return ill.code
		})
		end := time.Now().Add(lasting + 5*time.Second)
		var wg sync.WaitGroup
		for i := range sickCallers {
			wg.Go(func() { n.call(t, s, storage.ID(fmt.Sprint("s", i)), end) })
		}
		wg.Wait()
		n.late = max(0, n.late-until.Sub(end.Add(-lasting-5*time.Second)))
		d.setBefore(nil)
		commontest.OKIn(t, "Close", s.Close())
		n.check(t, s.path, o, ill, first)
	})
	return n
}

// call makes calls until the end. It executes those that the store does not refuse.
func (n *tally) call(t *testing.T, s *Store, id storage.ID, end time.Time) {
	ill, begun := false, time.Now()
	for i := 0; time.Now().Before(end); i++ {
		if err := s.Writable(t.Context()); err != nil {
			n.count(&n.refused)
			ill = true
			time.Sleep(50 * time.Millisecond)
			continue
		}
		b := ended(batch(storage.StreamID(fmt.Sprint("r", i)), 1, `1`))
		b.Session = id
		n.count(&n.executed)
		if err := s.Append(t.Context(), b); err != nil {
			n.count(&n.unknown)
			ill = true
			continue
		}
		n.mu.Lock()
		n.answered++
		n.kept = append(n.kept, storage.StreamID(id)+"/"+b.Stream)
		if ill {
			ill, n.late = false, max(n.late, time.Since(begun))
		}
		n.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

func (n *tally) count(what *int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*what++
}

// check checks the store after the calls.
func (n *tally) check(t *testing.T, path string, o Options, ill sickness, first int) {
	t.Helper()
	s := open(t, path, o)
	defer func() { _ = s.Close() }()
	for _, name := range n.kept {
		id, stream, _ := strings.Cut(string(name), "/")
		tail, err := s.Tail(t.Context(), storage.ID(id), storage.StreamID(stream))
		if err != nil || !tail.Final {
			t.Fatalf("from call %d on: the answer to %s is lost: %+v, %v", first, name, tail, err)
		}
	}
	switch {
	case n.executed != n.answered+n.unknown:
		t.Errorf("from call %d on: %d executed, %d answered and %d not known", first, n.executed, n.answered, n.unknown)
	case ill.code == sqlite3.SQLITE_OK && (n.unknown > 0 || n.refused > 0):
		t.Errorf("from call %d on: a slow disk lost %d and refused %d", first, n.unknown, n.refused)
	case ill.code != sqlite3.SQLITE_OK && (n.unknown > sickCallers || n.refused == 0):
		t.Errorf("from call %d on: %d calls have an end that is not known, %d were refused; want at most %d, and some", first, n.unknown, n.refused, sickCallers)
	case n.late > probeEvery+100*time.Millisecond:
		t.Errorf("from call %d on: the first answer came %s after the disk was well", first, n.late)
	}
}
