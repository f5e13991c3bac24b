package sqlitestore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestWhatIsLoadedBelongsToItsCaller(t *testing.T) {
	s := fresh(t)
	x := storage.Session{
		ID: "s1", Expires: time.Now().Add(time.Hour), Init: []byte(`{"a":1}`), Props: []byte(`{"b":2}`), Subscribed: []string{"u"},
		ServerInfo: []byte(`{"c":3}`), Params: []byte(`{"d":4}`), Standby: []storage.Lease{{Nonce: "n"}}, Conns: []string{"c"},
		Pushed: []storage.Cursor{{Stream: "r"}},
	}
	commontest.OK(t, s.Create(t.Context(), x))
	load := func() storage.Session {
		t.Helper()
		x, _, err := s.Load(t.Context(), "s1", "b")
		commontest.OK(t, err)
		return x
	}
	want, changed := load(), load()
	for _, raw := range [][]byte{changed.Init, changed.Props, changed.ServerInfo, changed.Params} {
		raw[0] = 'x'
	}
	changed.Subscribed[0], changed.Standby[0].Nonce, changed.Conns[0], changed.Pushed[0].Stream = "x", "x", "x", "x"
	same(t, "session", load(), want)
}

func TestKnownForgetsRatherThanGrow(t *testing.T) {
	var k known[int]
	reads := 0
	read := func(record []byte) (int, error) {
		reads++
		return len(record), nil
	}
	for i := range 10 * maxKnown {
		for range 2 {
			if n, err := k.of([]byte(fmt.Sprint(i)), read); n != len(fmt.Sprint(i)) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	same(t, "reads", reads, 10*maxKnown)
	for range 2 {
		_, _ = k.of([]byte(strings.Repeat("x", maxKnownSize+1)), read)
	}
	same(t, "reads, with two of what is too large", reads, 10*maxKnown+2)
	if len(k.said) > maxKnown {
		t.Errorf("%d records are remembered", len(k.said))
	}
}

func TestARecordThatIsChangedIsReadAnew(t *testing.T) {
	s := fresh(t)
	writer := again(t, s)
	x := storage.Session{ID: "s1", Level: "info", Expires: time.Now().Add(time.Hour)}
	commontest.OK(t, s.Create(t.Context(), x))
	for rev, level := range []string{"info", "debug", "error"} {
		if rev > 0 {
			x.Rev, x.Level = int64(rev), level
			commontest.OK(t, writer.Save(t.Context(), x))
		}
		got, _, err := s.Load(t.Context(), "s1", "b")
		same(t, "level, revision and error", []any{got.Level, got.Rev, err}, []any{level, int64(rev + 1), nil})
	}
}
