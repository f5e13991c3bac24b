package dynamostore

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestALongMessageIsKeptInPartsUntilItIsDeleted(t *testing.T) {
	s := open(t, Options{})
	raw := strings.Repeat("0123456789abcdef", 1<<16)
	it := storage.Item{Box: "b1", ID: "r1", State: storage.Waiting, Raw: []byte(raw), NotAfter: time.Now().Add(time.Minute)}
	for _, want := range []bool{true, false} {
		if put, err := s.PutItem(t.Context(), it); err != nil || put != want {
			t.Fatalf("put %t, %v, want %t", put, err, want)
		}
	}
	for range 2 {
		if got, err := s.Claim(t.Context(), "b1", "r1", 1); err != nil || string(got.Raw) != raw {
			t.Fatalf("claimed %d bytes, %v, want %d", len(got.Raw), err, len(raw))
		}
	}
	if got, err := s.Item(t.Context(), "b1", "r1"); err != nil || string(got.Raw) != raw {
		t.Fatalf("read %d bytes, %v, want %d", len(got.Raw), err, len(raw))
	}
	items, err := s.Items(t.Context(), "b1")
	if err != nil || len(items) != 1 || items[0].Raw != nil {
		t.Fatalf("items %v, %v, want one without its message", items, err)
	}
	if n := len(rows(t, s, "Z#")); n != 3 {
		t.Fatalf("%d parts, want 3", n)
	}
	if err := s.DeleteItem(t.Context(), "b1", "r1", 2); err != nil || len(rows(t, s, "Z#")) != 3 {
		t.Fatalf("%v, and another generation has deleted parts", err)
	}
	if err := s.DeleteItem(t.Context(), "b1", "r1", 1); err != nil || len(rows(t, s, "Z#")) != 0 {
		t.Fatalf("%v, and parts are left", err)
	}
}

func TestALongAnswerIsKeptInParts(t *testing.T) {
	s := open(t, Options{})
	a := storage.Answer{
		Session: "s1", Question: strings.Repeat("q", 5000), Raw: []byte(strings.Repeat("x", 1<<20)), Expires: time.Now().Add(time.Hour),
	}
	if first, err := s.PutAnswer(t.Context(), a); err != nil || !first {
		t.Fatalf("first %t, %v", first, err)
	}
	got, err := s.Answers(t.Context(), "s1", []string{"other", a.Question, a.Question})
	if err != nil || len(got) != 2 {
		t.Fatalf("%d answers, %v, want the one twice", len(got), err)
	}
	for _, g := range got {
		if g.Question != a.Question || string(g.Raw) != string(a.Raw) {
			t.Errorf("an answer of %d bytes, want %d", len(g.Raw), len(a.Raw))
		}
	}
}

func TestAFrameIsNotMistakenForOneWhoseNameBeginsTheSame(t *testing.T) {
	s := open(t, Options{})
	for frame, data := range map[string]string{"a": "1", "a#1": "2", "a#000000": "3"} {
		commontest.OK(t, s.PutPart(t.Context(), storage.Part{Box: "b1", Frame: frame, Data: []byte(data)}))
	}
	got, err := s.Parts(t.Context(), "b1", "a")
	if want := []storage.Part{{Box: "b1", Frame: "a", Data: []byte("1")}}; err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestWhatIsTooLongIsTooLarge(t *testing.T) {
	s := New(client("http://127.0.0.1:0", nil), "table", Options{})
	long := make([]byte, maxInline+1)
	for name, err := range map[string]error{
		"Create":        s.Create(t.Context(), storage.Session{ID: "s1", Init: long}),
		"Save":          s.Save(t.Context(), storage.Session{ID: "s1", Init: long}),
		"SaveHandshake": s.SaveHandshake(t.Context(), storage.Handshake{Result: long}),
		"PutPart":       s.PutPart(t.Context(), storage.Part{Data: long}),
		"Append":        s.Append(t.Context(), aBatch(1, strings.Repeat("x", storage.MaxBatchBytes+1))),
	} {
		t.Run(name, func(t *testing.T) {
			commontest.EqualIn(t, name, storage.TooLarge, storage.CodeOf(err))
		})
	}
}

// Session ids, cursors and stream ids come from clients, so any text may stand in them.
func TestWhatNoKeyCanHoldIsNotThere(t *testing.T) {
	s := open(t, Options{})
	long := strings.Repeat("x", 10_000)
	if _, box, err := s.Load(t.Context(), storage.ID(long), "b1"); storage.CodeOf(err) != storage.NotFound || box.ID != "b1" {
		t.Errorf("Load: %v, want NotFound, with the box", err)
	}
	if _, err := s.Item(t.Context(), "b1", storage.StreamID(long)); storage.CodeOf(err) != storage.NotFound {
		t.Errorf("Item: %v, want NotFound", err)
	}
	if got, _ := indexes(t, s, storage.StreamID(long), 0, 10); len(got) > 0 {
		t.Errorf("Read: %v, want nothing", got)
	}
	if tail, err := s.Tail(t.Context(), "s1", storage.StreamID(long)); err != nil || tail != (storage.Tail{}) {
		t.Errorf("Tail: %v, %v, want none", tail, err)
	}
}

func TestExpiredSessionsDoNotShortenAList(t *testing.T) {
	s := open(t, Options{})
	for _, id := range []storage.ID{"s1", "s2", "s3", "s4", "s5"} {
		expires := time.Now().Add(time.Hour)
		if id < "s4" {
			expires = time.Now().Add(-time.Hour)
		}
		commontest.OK(t, s.Create(t.Context(), storage.Session{ID: id, Tenant: "acme", Expires: expires}))
	}
	for _, tenant := range []string{"acme", ""} {
		list, err := s.List(t.Context(), tenant, "", 2)
		if err != nil || len(list) != 2 || list[0].ID != "s4" || list[1].ID != "s5" {
			t.Errorf("tenant %q: %v, %v, want s4 and s5", tenant, list, err)
		}
	}
}

func TestASessionThatGoesWhileItIsListedDoesNotShortenTheList(t *testing.T) {
	s := open(t, Options{})
	for _, id := range []storage.ID{"s1", "s2"} {
		commontest.OK(t, s.Create(t.Context(), storage.Session{ID: id, Tenant: "acme"}))
	}
	deleting := transport(func(operation string, r *http.Request) (*http.Response, error) {
		if operation == "BatchGetItem" {
			_, err := s.client.DeleteItem(r.Context(), &dynamodb.DeleteItemInput{TableName: &s.table, Key: key(sessionKey("s1"), "m")})
			commontest.Check(t, err)
		}
		return http.DefaultClient.Do(r)
	})
	list, err := New(client(*s.client.Options().BaseEndpoint, deleting), s.table, s.options).List(t.Context(), "acme", "", 1)
	if err != nil || len(list) != 1 || list[0].ID != "s2" {
		t.Errorf("%v, %v, want s2", list, err)
	}
}
