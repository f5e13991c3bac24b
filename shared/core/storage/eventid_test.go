package storage_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestAnEventIDComesBackAsItWasWritten(t *testing.T) {
	stream := storage.NewStreamID()
	for _, want := range []storage.EventID{
		{}, {Index: 1}, {Index: 1 << 62}, {Index: 7, Nonce: "abc0"}, {Index: 7, Stream: stream}, {Index: 0, Nonce: storage.NewNonce(), Stream: stream},
	} {
		got, err := storage.ParseEventID(want.String())
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v", want.String(), got, err)
		}
	}
}

func TestAMalformedEventIDSaysWhichPart(t *testing.T) {
	for id, part := range map[string]string{
		"": "length", "x": "index", "-1": "index", "01": "index", "1.": "nonce", "1.A": "nonce", "1/": "stream",
		"1/a/b": "stream", "1/../m": "stream", "9223372036854775808": "index", "1.a/": "stream", " 1": "index",
	} {
		_, err := storage.ParseEventID(id)
		if !errors.Is(err, storage.Invalid) || !strings.Contains(err.Error(), " has a malformed "+part+";") {
			t.Errorf("%q: %v, want a malformed %s", id, err, part)
		}
	}
}

func TestAStreamIDTellsWhenItBegan(t *testing.T) {
	before := time.Now().Add(-2 * time.Millisecond)
	if at := storage.NewStreamID().Time(); at.Before(before) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("a stream begun now says %v", at)
	}
	if !storage.Standalone.Time().IsZero() || !storage.StreamID("zz").Time().IsZero() {
		t.Error("what is no request stream has no time")
	}
}

func TestIDsAreVisibleASCIIAndDiffer(t *testing.T) {
	seen := map[storage.ID]bool{}
	for range 10000 {
		id := storage.NewID()
		if len(id) != 32 || seen[id] {
			t.Fatalf("id %q: %d characters, seen before: %v", id, len(id), seen[id])
		}
		seen[id] = true
		for _, c := range []byte(id) {
			if c < 0x21 || c > 0x7e || c == '/' || c == '.' {
				t.Fatalf("id %q holds %q", id, c)
			}
		}
	}
}
