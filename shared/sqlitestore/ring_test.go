package sqlitestore

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// rungPage is what a waiter for a marked stream is given by the ring alone.
func rungPage(t *testing.T, s *Store, stream session.StreamID, after session.Index, write func()) (p session.Page, known bool) {
	t.Helper()
	w := s.desk.wait("s1", stream)
	defer w.takeDown()
	write()
	r, rung := w.wait(t.Context(), far())
	if !rung {
		t.Fatal("nothing rang")
	}
	return r.page(after)
}

func TestARingBringsWhatWasWritten(t *testing.T) {
	s := fresh(t)
	for name, writer := range map[string]*Store{"here": s, "elsewhere": again(t, s)} {
		stream := marked(t, s)
		b := ended(batch(stream, 1, `1`, ``, `3`))
		b.Retry = 1500 * time.Microsecond
		p, known := rungPage(t, s, stream, 0, func() { put(t, writer, b) })
		same(t, name+": known", known, true)
		same(t, name+": page", p, read(t, s, stream, 0))
	}
}

func TestARingDoesNotKnow(t *testing.T) {
	s := fresh(t)
	writer := again(t, s)
	for name, c := range map[string]struct {
		after session.Index
		write func(stream session.StreamID)
	}{
		"what is behind a cursor that is elsewhere": {5, func(stream session.StreamID) { put(t, writer, batch(stream, 1, `1`)) }},
		"what is too large for it": {0, func(stream session.StreamID) {
			put(t, writer, batch(stream, 1, string(make([]byte, maxRing))))
		}},
		"what has expired already": {0, func(stream session.StreamID) {
			b := batch(stream, 1, `1`)
			b.Expires = time.Now().Add(-time.Hour)
			put(t, writer, b)
		}},
		"what an item became": {0, func(stream session.StreamID) {
			it := session.Item{Box: "b", ID: stream, State: session.Waiting, Address: session.Address{Session: "s1"}}
			if _, err := writer.PutItem(t.Context(), it); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		stream := marked(t, s)
		_, known := rungPage(t, s, stream, c.after, func() { c.write(stream) })
		same(t, name, known, false)
	}
}

// FuzzReadRing: whatever comes through a socket, a page is as long as it says.
func FuzzReadRing(f *testing.F) {
	f.Add(ring{first: 1, n: 1, final: true, lines: []byte(`{}`)}.append(nil), int64(0))
	f.Add(ring{first: 7, n: 2, retry: time.Second, lines: []byte("{}\n{}")}.append(nil), int64(6))
	f.Add(ring{first: 1, n: 1 << 30, lines: []byte("{}")}.append(nil), int64(0))
	f.Add([]byte("r"), int64(0))
	f.Fuzz(func(t *testing.T, data []byte, after int64) {
		r := readRing(data)
		p, known := r.page(session.Index(after))
		if known && (len(p.Events) != min(r.n, session.MaxWait) || p.Events[0].Index != max(session.Index(after), 0)+1 || p.Gap) {
			t.Errorf("%d events of %d from %d after %d, gap %t", len(p.Events), r.n, p.Events[0].Index, after, p.Gap)
		}
	})
}
