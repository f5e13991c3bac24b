package dynamostore

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aBatch returns a batch of the request stream "r1" of session "s1".
func aBatch(first storage.Index, events ...string) storage.Batch {
	b := storage.Batch{Session: "s1", Stream: "r1", First: first, Gen: 1, Seq: int64(first), Expires: time.Now().Add(time.Hour)}
	for _, e := range events {
		b.Events = append(b.Events, []byte(e))
	}
	return b
}

func add(t *testing.T, s *Store, batches ...storage.Batch) {
	t.Helper()
	for _, b := range batches {
		commontest.OKIn(t, fmt.Sprintf("Append at %d", b.First), s.Append(t.Context(), b))
	}
}

// indexes reads a page and returns the indexes of its events.
func indexes(t *testing.T, s *Store, stream storage.StreamID, after storage.Index, limit int) (list []storage.Index, p storage.Page) {
	t.Helper()
	p, err := s.Read(t.Context(), "s1", stream, after, limit)
	if err != nil {
		t.Fatalf("Read after %d: %v", after, err)
	}
	for _, e := range p.Events {
		list = append(list, e.Index)
	}
	return list, p
}

// rows returns the sort keys of the rows whose PK has a prefix.
func rows(t *testing.T, s *Store, prefix string) (keys []string) {
	t.Helper()
	out, err := s.client.Scan(t.Context(), &dynamodb.ScanInput{
		TableName: &s.table, FilterExpression: aws.String("begins_with(PK, :p)"), ExpressionAttributeValues: row{":p": str(prefix)},
	})
	commontest.OK(t, err)
	for _, r := range out.Items {
		keys = append(keys, row(r).str("SK"))
	}
	return keys
}

func TestABatchOf16MiBIsReadFromAnyCursorByteForByte(t *testing.T) {
	s := open(t, Options{Bytes: 1 << 50})
	var events []string
	for i := range 16 {
		events = append(events, strings.Repeat(string(rune('a'+i)), 1<<20))
	}
	add(t, s, aBatch(1, "first"), aBatch(2, events...))
	for _, after := range []storage.Index{1, 9} {
		_, p := indexes(t, s, "r1", after, 100)
		if len(p.Events) != 17-int(after) || p.Gap || p.More {
			t.Fatalf("%d events after %d, gap %t, more %t", len(p.Events), after, p.Gap, p.More)
		}
		for i, e := range p.Events {
			if e.Index != after+1+storage.Index(i) || string(e.Raw) != events[e.Index-2] {
				t.Fatalf("event %d after %d has index %d and %d bytes", i, after, e.Index, len(e.Raw))
			}
		}
	}
}

func TestHalfALongBatchIsNeverSeen(t *testing.T) {
	c := dial(t)
	table := newTable(t, c)
	ctx, die := context.WithCancel(t.Context())
	dying := transport(func(operation string, r *http.Request) (*http.Response, error) {
		if operation == "PutItem" {
			die()
			return nil, ctx.Err()
		}
		return http.DefaultClient.Do(r)
	})
	writer := New(client(*c.Options().BaseEndpoint, dying), table, Options{Patience: time.Minute})
	reader := New(c, table, Options{Patience: time.Minute})
	long := aBatch(1, strings.Repeat("x", 1<<20))
	if err := writer.Append(ctx, long); storage.CodeOf(err) != storage.Unavailable {
		t.Fatalf("%v, want Unavailable", err)
	}
	if n := len(rows(t, reader, "Z#")); n == 0 {
		t.Fatal("no part was written before the batch")
	}
	if got, p := indexes(t, reader, "r1", 0, 10); len(got) > 0 || p.More {
		t.Fatalf("events %v are seen", got)
	}
	if tail, err := reader.Tail(t.Context(), "s1", "r1"); err != nil || tail != (storage.Tail{}) {
		t.Fatalf("Tail is %v, %v", tail, err)
	}
	other := aBatch(1, strings.Repeat("y", 1<<20))
	other.Gen = 2
	add(t, reader, other)
	if err := reader.Append(t.Context(), long); storage.CodeOf(err) != storage.Conflict {
		t.Fatalf("the first writer again: %v, want Conflict", err)
	}
	if _, p := indexes(t, reader, "r1", 0, 10); len(p.Events) != 1 || string(p.Events[0].Raw) != string(other.Events[0]) {
		t.Fatal("the batch is not the one of the second writer")
	}
}

func TestTheTailOfTheStandaloneStreamIsKeptForAsLongAsTheSession(t *testing.T) {
	const day = 24 * time.Hour
	s := open(t, Options{})
	b := aBatch(1, "1")
	b.Stream = storage.Standalone
	add(t, s, aBatch(1, "1"), b)
	deleted := func() time.Time {
		r, err := s.get(t.Context(), sessionKey("s1"), eventKey(storage.Standalone, 1))
		if err != nil || r == nil {
			t.Fatal(r, err)
		}
		return time.Unix(r.num("x"), 0)
	}
	first := deleted()
	if left := time.Until(first); left < 7*day || left > 8*day {
		t.Fatalf("the tail is deleted in %s, want 7 days after it has expired", left)
	}
	x := storage.Session{ID: "s1", Created: time.Now(), Expires: time.Now().Add(time.Minute)}
	save := func(created time.Time, life time.Duration) cost {
		x.Created, x.Expires = created, time.Now().Add(life)
		c, err := costOf(s, func() error { return s.Save(t.Context(), x) })
		commontest.OK(t, err)
		x.Rev++
		return c
	}
	commontest.OK(t, s.Create(t.Context(), x))
	x.Rev = 1
	if c := save(time.Now(), 7*day); c.Requests["Query"] != 0 || deleted() != first {
		t.Errorf("a young session: %v, the tail is deleted at %s, want what it was", c, deleted())
	}
	if c := save(time.Now().Add(-2*day), 7*day); c.Requests["Query"] != 0 || deleted() != first {
		t.Errorf("no longer life: %v, the tail is deleted at %s, want what it was", c, deleted())
	}
	save(time.Now().Add(-5*day), 10*day)
	if left := time.Until(deleted()); left < 16*day || left > 18*day {
		t.Errorf("the tail is deleted in %s, want the life of the session and 7 days", left)
	}
}

func TestDurableValuesAreKeptForAsLongAsTheirSession(t *testing.T) {
	const day = 24 * time.Hour
	s := open(t, Options{})
	created := time.Now().Add(-5 * day)
	x := storage.Session{ID: "s1", Created: created, Expires: time.Now().Add(day)}
	commontest.OK(t, s.Create(t.Context(), x))
	k := storage.ValueKey{Tenant: "acme", Server: "a", Scope: storage.ValueOfSession, Of: "s1", Since: created, Name: "n"}
	before := k
	before.Since = created.Add(-day)
	deleted := func(k storage.ValueKey) time.Duration {
		at := stateRow(k)
		r, err := s.get(t.Context(), at.str("PK"), at.str("SK"))
		if err != nil || r == nil {
			t.Fatal(r, err)
		}
		return time.Until(time.Unix(r.num("x"), 0))
	}
	for _, k := range []storage.ValueKey{k, before} {
		_, err := s.SaveValue(t.Context(), storage.Value{Key: k, Data: []byte("1")})
		commontest.OK(t, err)
		if left := deleted(k); left < 13*day || left > 15*day {
			t.Errorf("a value is deleted in %s, want 14 days", left)
		}
	}
	x.Rev, x.Expires = 1, time.Now().Add(10*day)
	commontest.OK(t, s.Save(t.Context(), x))
	if left := deleted(k); left < 16*day || left > 18*day {
		t.Errorf("a value of a session that was prolonged is deleted in %s, want the life of the session and 7 days", left)
	}
	if left := deleted(before); left > 15*day {
		t.Errorf("a value of the session before is deleted in %s, want what it was", left)
	}
}
