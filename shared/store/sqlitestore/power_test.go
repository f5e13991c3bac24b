package sqlitestore

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// sector is the unit that a disk writes as a whole, in bytes.
const sector = 512

// image is the content of the disk: for each file the synced part, and the writes and
// deletions since the last sync.
type image map[string]*imageFile

type imageFile struct {
	synced  []byte
	written []diskCall
	named   bool // SQLite has synced the folder since the file was made
}

// apply applies a call of SQLite to the image. The first fsync of a new journal also
// syncs the folder (UNIXFILE_DIRSYNC), so earlier deletions become lasting.
func (m image) apply(c diskCall) {
	if m[c.file] == nil {
		m[c.file] = &imageFile{}
	}
	f := m[c.file]
	f.written = append(f.written, c)
	if c.do == diskDelete {
		f.named = false
	}
	if c.do == diskSync {
		f.synced, f.written = after(f.synced, f.written), nil
		if strings.Contains(c.file, "-") && !f.named {
			f.named = true
			m.syncFolder()
		}
	}
}

func (m image) syncFolder() {
	for _, f := range m {
		if n := len(f.written); n > 0 && f.written[n-1].do == diskDelete {
			f.synced, f.written = nil, nil
		}
	}
}

func after(content []byte, calls []diskCall) []byte {
	content = bytes.Clone(content)
	for _, c := range calls {
		switch c.do {
		case diskWrite:
			if end := int(c.at) + len(c.data); end > len(content) {
				content = append(content, make([]byte, end-len(content))...)
			}
			copy(content[c.at:], c.data)
		case diskTruncate:
			content = append(content, make([]byte, max(0, int(c.at)-len(content)))...)[:c.at]
		case diskDelete:
			content = nil
		case diskSync:
		}
	}
	return content
}

// loss is the fate of unsynced writes when the power fails.
type loss string

const (
	loseAll  loss = "all of it is lost"
	loseNone loss = "none of it is lost"
	loseSome loss = "some of it is lost, by sectors"
)

// cut returns the files after a power cut, without empty ones.
func (m image) cut(l loss, r *rand.Rand) map[string][]byte {
	files := map[string][]byte{}
	for name, f := range m {
		var left []diskCall
		for _, c := range f.written {
			switch {
			case l == loseNone:
				left = append(left, c)
			case l == loseAll:
			case c.do != diskWrite && r.IntN(2) == 0:
				left = append(left, c)
			case c.do == diskWrite:
				for at := 0; at < len(c.data); at += sector {
					if r.IntN(2) == 0 {
						left = append(left, diskCall{do: diskWrite, at: c.at + int64(at), data: c.data[at:min(at+sector, len(c.data))]})
					}
				}
			}
		}
		if content := after(f.synced, left); len(content) > 0 {
			files[name] = content
		}
	}
	return files
}

// fact is a result that a caller got, and the state that it promises from then on.
type fact struct {
	at   int // the number of calls of the disk so far
	what string
	is   func(t *testing.T, s *Store) bool
}

// facts are the results of all callers, in order.
type facts struct {
	disk *disk
	mu   sync.Mutex
	list []fact
}

func (f *facts) told(t *testing.T, err error, what string, is func(t *testing.T, s *Store) bool) {
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fact{len(f.disk.done()), what, is})
}

// live makes the calls of one session and its box in some rounds.
func (f *facts) live(t *testing.T, s *Store, name string, rounds int) {
	ctx, id, box := t.Context(), storage.ID(name), storage.Box{ID: storage.BoxID("acme/" + name), Tenant: "acme", Server: name}
	err := s.Create(ctx, storage.Session{ID: id, Expires: time.Now().Add(time.Hour)})
	f.told(t, err, name+" was created", func(t *testing.T, s *Store) bool {
		_, _, err := s.Load(t.Context(), id, box.ID)
		return err == nil
	})
	save := func(state storage.BoxState) {
		box.State = state
		err := s.SaveBox(ctx, box)
		box.Rev++
		rev := box.Rev
		f.told(t, err, fmt.Sprint("box of ", name, " was saved as ", state), func(t *testing.T, s *Store) bool {
			b, err := s.Box(t.Context(), box.ID)
			return err == nil && b.Rev >= rev
		})
	}
	for i := range rounds {
		stream := storage.StreamID(fmt.Sprint("r", i))
		save(storage.Starting)
		it := storage.Item{Box: box.ID, ID: stream, State: storage.Waiting, Raw: []byte("1"), Address: storage.Address{Session: id}}
		if _, err := s.PutItem(ctx, it); err != nil {
			t.Error(err)
		}
		save(storage.Awake)
		_, err := s.Claim(ctx, box.ID, stream, 1)
		f.told(t, err, fmt.Sprint(stream, " of ", name, " was claimed"), func(t *testing.T, s *Store) bool {
			_, err := s.Claim(t.Context(), box.ID, stream, 2)
			return storage.CodeOf(err) == storage.Conflict || storage.CodeOf(err) == storage.NotFound
		})
		b := ended(batch(stream, 1, string(bytes.Repeat([]byte("x"), 100+i*700))))
		b.Session = id
		f.told(t, s.Append(ctx, b), fmt.Sprint(stream, " of ", name, " was answered"), func(t *testing.T, s *Store) bool {
			p, err := s.Read(t.Context(), id, stream, 0, 10)
			return err == nil && p.Final() && len(p.Events) == 1 && bytes.Equal(p.Events[0].Raw, b.Events[0])
		})
		commontest.Check(t, s.DeleteItem(ctx, box.ID, stream, 1))
		save(storage.Asleep)
	}
}

// recorded runs a store, and returns the calls on its disk and the results of its
// callers.
func recorded(t *testing.T, o Options, sessions, rounds int) ([]diskCall, []fact) {
	t.Helper()
	dir := t.TempDir()
	d, with := newDisk(t, dir)
	o.vfs = with.vfs
	if o.sync == nil {
		o.sync = with.sync
	}
	s := open(t, filepath.Join(dir, "store.db"), o)
	// This makes SQLite overwrite the log often, and move its pages to the file.
	_, err := s.writer.db.ExecContext(t.Context(), "PRAGMA wal_autocheckpoint=40")
	commontest.OK(t, err)
	f := &facts{disk: d}
	var wg sync.WaitGroup
	for i := range sessions {
		wg.Go(func() { f.live(t, s, fmt.Sprint("s", i), rounds) })
	}
	wg.Wait()
	commontest.OKIn(t, "Close", s.Close())
	return d.done(), f.list
}

// aftermath opens a store after power cuts.
type aftermath struct {
	path    string
	options Options
	cuts    map[loss]int
	checked int
	lost    []string
}

// look opens the files that a cut has left, and compares them with the facts before
// the cut.
func (a *aftermath) look(t *testing.T, at int, l loss, files map[string][]byte, known []fact) {
	t.Helper()
	for _, name := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(a.path + name)
	}
	for name, content := range files {
		commontest.OK(t, os.WriteFile(filepath.Join(filepath.Dir(a.path), name), content, 0o600))
	}
	s, err := Open(a.path, a.options)
	if err != nil {
		t.Fatalf("after call %d, %s: the file does not open: %v", at, l, err)
	}
	defer func() { _ = s.Close() }()
	var sound string
	if err := s.writer.db.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&sound); err != nil || sound != "ok" {
		t.Fatalf("after call %d, %s: the file is damaged: %s, %v", at, l, sound, err)
	}
	a.cuts[l]++
	for _, f := range known {
		a.checked++
		if !f.is(t, s) {
			a.lost = append(a.lost, fmt.Sprintf("after call %d, %s: not so any more: %s", at, l, f.what))
		}
	}
	a.boxes(t, s)
}

// boxes puts every box to sleep that is awake, as the sweep does.
func (a *aftermath) boxes(t *testing.T, s *Store) {
	t.Helper()
	for range 2 {
		due, err := s.Due(t.Context())
		commontest.OK(t, err)
		for _, id := range due {
			b, err := s.Box(t.Context(), id)
			commontest.OK(t, err)
			if b.State = storage.Asleep; s.SaveBox(t.Context(), b) != nil {
				t.Fatalf("box %s does not fall asleep", id)
			}
			items, err := s.Items(t.Context(), id)
			commontest.OK(t, err)
			for _, it := range items {
				commontest.OK(t, s.DeleteItem(t.Context(), id, it.ID, 0))
			}
		}
	}
	due, err := s.Due(t.Context())
	commontest.SameIn(t, "boxes that stay as they are", []any{0, nil}, []any{len(due), err})
}

// cutAll cuts the power after the chosen calls, and returns the outcome.
func cutAll(t *testing.T, calls []diskCall, told []fact, chosen func(at int) bool) *aftermath {
	t.Helper()
	dir := t.TempDir()
	d, o := newDisk(t, dir)
	d.lax = true
	a := &aftermath{path: filepath.Join(dir, "store.db"), options: o, cuts: map[loss]int{}}
	r, m := rand.New(rand.NewPCG(1, 2)), image{} //nolint:gosec // the same each time
	for at, c := range calls {
		m.apply(c)
		if !chosen(at + 1) {
			continue
		}
		known, _ := slices.BinarySearchFunc(told, at+2, func(f fact, at int) int { return f.at - at })
		for _, l := range []loss{loseAll, loseNone, loseSome} {
			a.look(t, at+1, l, m.cut(l, r), told[:known])
		}
	}
	return a
}

// TestPowerCut cuts the power at any moment, with any part of the unsynced writes
// kept. The file must open, and every fact must hold. No message may be claimed
// twice, and no box may be stuck.
func TestPowerCut(t *testing.T) {
	t.Run("disk", func(t *testing.T) { powerCut(t, Options{}, 9, func(fact) bool { return true }) })
	// What was claimed is executed, so a claim lasts. All else may be lost, from some moment on.
	t.Run("process", func(t *testing.T) {
		powerCut(t, Options{Behind: true}, 23, func(f fact) bool { return strings.HasSuffix(f.what, "was claimed") })
	})
}

func powerCut(t *testing.T, o Options, every int, lasts func(fact) bool) {
	t.Helper()
	sessions, rounds := 4, 4
	if *chaos {
		sessions, rounds, every = 8, 12, 1
	}
	calls, told := recorded(t, o, sessions, rounds)
	told = slices.DeleteFunc(told, func(f fact) bool { return !lasts(f) })
	a := cutAll(t, calls, told, func(at int) bool { return at%every == 0 || at == len(calls) })
	for _, what := range a.lost[:min(5, len(a.lost))] {
		t.Error(what)
	}
	kinds := map[diskVerb]int{}
	for _, c := range calls {
		kinds[c.do]++
	}
	t.Logf("a life of %d calls of the disk (%v) with %d answers to callers; power cuts: %v; %d comparisons, %d lost",
		len(calls), kinds, len(told), a.cuts, a.checked, len(a.lost))
	if kinds[diskDelete] == 0 || len(slices.Collect(maps.Keys(a.cuts))) != 3 {
		t.Error("the life has no end")
	}
}

// TestPowerCutTakesWhatIsNotSynced checks that the same experiment finds the lost writes
// of a store without any fsync.
func TestPowerCutTakesWhatIsNotSynced(t *testing.T) {
	calls, told := recorded(t, Options{Behind: true, sync: func() error { return nil }}, 2, 3)
	a := cutAll(t, calls, told, func(at int) bool { return at%29 == 0 })
	if len(a.lost) == 0 {
		t.Errorf("nothing of %d answers is lost in %v", len(told), a.cuts)
	}
}
