package sqlitestore

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aloneStore runs a test in virtual time with a store that is alone, in which it has loaded a
// session and a box, and with another handle on its file.
func aloneStore(t *testing.T, test func(t *testing.T, s, other *Store, load func() (storage.Session, storage.Box, error))) {
	t.Helper()
	virtual(t, Options{Alone: true}, func(t *testing.T, s, other *Store) {
		commontest.OK(t, s.Create(t.Context(), storage.Session{ID: "s1", Level: "info", Init: []byte(`{"a":1}`), Expires: time.Now().Add(time.Hour)}))
		commontest.OK(t, s.SaveBox(t.Context(), storage.Box{ID: "b", State: storage.Starting}))
		load := func() (storage.Session, storage.Box, error) { return s.Load(t.Context(), "s1", "b") }
		_, _, err := load()
		commontest.OK(t, err)
		test(t, s, other, load)
	})
}

func TestAStoreThatIsAloneLoadsWithoutItsFile(t *testing.T) {
	aloneStore(t, func(t *testing.T, s, _ *Store, load func() (storage.Session, storage.Box, error)) {
		for _, taken := range []chan struct{}{s.writer.turn, s.reader.turn} {
			taken <- struct{}{}
			defer func() { <-taken }()
		}
		first, box, err := load()
		commontest.OK(t, err)
		first.Init[0] = 'x' // it belongs to its caller
		x, _, err := load()
		commontest.SameIn(t, "init, revision, box and error", []any{`{"a":1}`, int64(1), int64(1), storage.Starting, nil}, []any{string(x.Init), x.Rev, box.Rev, box.State, err})
	})
}

func TestAStoreThatIsAloneSeesEachWrite(t *testing.T) {
	for name, write := range map[string]func(t *testing.T, by *Store, x storage.Session, b storage.Box) error{
		"of a session": func(t *testing.T, by *Store, x storage.Session, _ storage.Box) error {
			x.Level = "new"
			return by.Save(t.Context(), x)
		},
		"of a box": func(t *testing.T, by *Store, _ storage.Session, b storage.Box) error {
			b.State = storage.Awake
			return by.SaveBox(t.Context(), b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			aloneStore(t, func(t *testing.T, s, other *Store, load func() (storage.Session, storage.Box, error)) {
				for _, of := range []struct {
					by    *Store
					after time.Duration
				}{{s, 0}, {other, watchAge}, {s, 0}} {
					x, b, err := load()
					commontest.OK(t, err)
					commontest.OK(t, write(t, of.by, x, b))
					time.Sleep(of.after)
					now, box, err := load()
					commontest.SameIn(t, "revisions and error", []any{x.Rev + b.Rev + 1, nil}, []any{now.Rev + box.Rev, err})
				}
			})
		})
	}
}

func TestAStoreThatIsAloneKeepsNoSessionLongerThanItLives(t *testing.T) {
	aloneStore(t, func(t *testing.T, _, _ *Store, load func() (storage.Session, storage.Box, error)) {
		time.Sleep(time.Hour - time.Nanosecond)
		_, _, err := load()
		commontest.OK(t, err)
		time.Sleep(time.Nanosecond)
		_, _, err = load()
		wantCode(t, "Load", err, storage.NotFound)
	})
}

func TestWhatWasReadBeforeAWriteIsNotKept(t *testing.T) {
	var r records
	old, b := storage.Session{ID: "s1", Rev: 1}, storage.Box{ID: "b"}
	_, _, since, _ := r.load("s1", "b", 1)
	r.forget("s1", "")
	r.keep(old, b, since)
	_, _, since, ok := r.load("s1", "b", 1)
	commontest.SameIn(t, "is it kept", false, ok)
	for id := range 10 * maxRecords {
		old.ID = storage.ID(rune(id))
		r.keep(old, b, since)
	}
	if len(r.sessions) > maxRecords {
		t.Errorf("%d sessions are kept", len(r.sessions))
	}
}
