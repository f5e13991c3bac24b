package storage_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// FuzzPages splits its input at zero bytes into events, joins them and takes them
// apart again from any cursor, in pages of any size.
func FuzzPages(f *testing.F) {
	for _, seed := range []string{"", "{}", "{}\x00[]", "\x00\x00", "a\nb", "\r\x00\xff\xfe\x00\"\u2028\""} {
		f.Add([]byte(seed), int64(7), int64(6), 2)
	}
	f.Add([]byte("1\x002"), int64(math.MaxInt64-3), int64(-1), 0)
	f.Fuzz(func(t *testing.T, data []byte, first, after int64, limit int) {
		b := storage.Batch{First: storage.Index(first), Events: bytes.Split(data, []byte{0}), Final: true, Retry: time.Second}
		lines, err := b.Lines()
		if bad := first < 1 || bytes.ContainsRune(data, '\n'); bad || len(b.Events) > storage.MaxBatchEvents {
			if bad && storage.CodeOf(err) != storage.Invalid || err == nil {
				t.Fatalf("Lines: %v", err)
			}
			return
		}
		if first > math.MaxInt64-storage.MaxBatchEvents {
			return
		}
		p := storage.NewPages(storage.Index(after), limit)
		if wanted, _ := p.Wants(b.First, len(b.Events)); wanted {
			p.Add(b.First, len(b.Events), b.Final, b.Retry, lines)
		}
		page := p.Page()
		from := max(after-first+1, 0)
		if rest := int64(len(b.Events)) - from; rest <= 0 {
			if diff := cmp.Diff(storage.Page{}, page); diff != "" {
				t.Fatal(diff)
			}
			return
		}
		for i, e := range page.Events {
			last := int(from)+i == len(b.Events)-1
			if !bytes.Equal(e.Raw, b.Events[int(from)+i]) || e.Final != last || (e.Retry > 0) != last {
				t.Fatalf("event %d is %+v", i, e)
			}
		}
		if page.More != (int(from)+len(page.Events) < len(b.Events)) || page.Gap != (first > max(after, 0)+1) {
			t.Fatalf("more %t, gap %t", page.More, page.Gap)
		}
	})
}

// During a deployment an older release may write a record of a newer one. The fields that
// it does not know must stay.
func TestFieldsOfANewerReleaseStayInARecord(t *testing.T) {
	const later = `"Later":{"x":[1,9007199254740993,"\u00e9"]}`
	s, err := storage.UnmarshalSession([]byte(`{"ID":"a","Server":"echo",` + later + `,"More":null,"Primary":{"Nonce":"n","Since":1}}`))
	if err != nil || s.Server != "echo" || s.Primary.Nonce != "n" {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Server = "other"
	record, err := storage.MarshalSession(s)
	if err != nil || !bytes.Contains(record, []byte(later)) || !bytes.Contains(record, []byte(`"More":null`)) {
		t.Errorf("%s, %v", record, err)
	}
	again, err := storage.UnmarshalSession(record)
	again.Init = nil // which drivers keep apart
	if diff := cmp.Diff(s, again); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	b, err := storage.UnmarshalBox([]byte(`{"ID":"b","Gen":7,` + later + `}`))
	if err != nil || b.Gen != 7 {
		t.Fatalf("%+v, %v", b, err)
	}
	if record, err = storage.MarshalBox(b); err != nil || !bytes.Contains(record, []byte(later)) {
		t.Errorf("%s, %v", record, err)
	}
}

func TestARecordThatIsBrokenIsSaid(t *testing.T) {
	for _, record := range []string{"", "{", `{"ID":1}`, `{"Later":}`, "[]"} {
		if s, err := storage.UnmarshalSession([]byte(record)); err == nil {
			t.Errorf("%q gives %+v", record, s)
		}
	}
}
