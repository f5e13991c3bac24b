package dynamostore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// transport is an HTTP client of the SDK. It gets the name of the operation, such
// as "PutItem".
type transport func(operation string, r *http.Request) (*http.Response, error)

func (f transport) Do(r *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	return f(operation, r)
}

func reply(status int, body string) (*http.Response, error) {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}}, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func refuse(status int, code string) (*http.Response, error) {
	return reply(status, fmt.Sprintf(`{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"no"}`, code))
}

// faked returns a Store whose requests go to f. There is no DynamoDB behind it.
func faked(f transport, o Options) *Store {
	return New(client("http://dynamodb.invalid", f), "table", o)
}

func TestWhatMayGoBetterIsRepeated(t *testing.T) {
	for name, fault := range map[string]transport{
		"throttled":   func(string, *http.Request) (*http.Response, error) { return refuse(400, "ThrottlingException") },
		"unavailable": func(string, *http.Request) (*http.Response, error) { return reply(503, "") },
		"connection":  func(string, *http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
		"half an answer": func(string, *http.Request) (*http.Response, error) {
			return reply(200, `{"ConsumedCapacity":{"Capac`)
		},
		"no answer": func(_ string, r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				s := faked(func(operation string, r *http.Request) (*http.Response, error) {
					if attempts++; attempts < 3 {
						return fault(operation, r)
					}
					return reply(200, `{}`)
				}, Options{})
				if err := s.SaveBox(t.Context(), storage.Box{ID: "b"}); err != nil || attempts != 3 {
					t.Fatalf("%v after %d attempts, want success after 3", err, attempts)
				}
			})
		})
	}
}

func TestTroubleThatStaysIsUnavailableWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := faked(func(string, *http.Request) (*http.Response, error) {
			return refuse(400, "ProvisionedThroughputExceededException")
		}, Options{Patience: 10 * time.Second})
		begun := time.Now()
		err := s.Append(t.Context(), aBatch(1, "1"))
		var cause *types.ProvisionedThroughputExceededException
		if storage.CodeOf(err) != storage.Unavailable || !errors.As(err, &cause) {
			t.Errorf("%v, want Unavailable because of the throttling", err)
		}
		if took := time.Since(begun); took < 8*time.Second || took > 10*time.Second {
			t.Errorf("gave up after %s, want a little less than its patience", took)
		}
	})
}

func TestErrorsHaveCodes(t *testing.T) {
	for _, c := range []struct {
		aws  string
		code storage.Code
		text string
	}{
		{"ResourceNotFoundException", storage.Unavailable, `no table "table"`},
		{"ValidationException", storage.Internal, "does not understand"},
		{"AccessDeniedException", storage.Unavailable, "does not let us in"},
	} {
		s := faked(func(string, *http.Request) (*http.Response, error) { return refuse(400, c.aws) }, Options{})
		_, _, loading := s.Load(t.Context(), "s", "b")
		_, reading := s.Read(t.Context(), "s", "r", 0, 1)
		_, claiming := s.Claim(t.Context(), "b", "r", 1)
		_, listing := s.List(t.Context(), "acme", "", 1)
		_, looking := s.Due(t.Context())
		for _, err := range []error{
			loading, reading, claiming, listing, looking, s.Create(t.Context(), storage.Session{}), s.Append(t.Context(), aBatch(1, "1")),
			s.DeleteItem(t.Context(), "b", "r", 1),
		} {
			if storage.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v with code %s, want %s with %q", c.aws, err, storage.CodeOf(err), c.code, c.text)
			}
		}
	}
}

func TestAContextThatEndedIsUnavailableAndStillFound(t *testing.T) {
	s := faked(func(_ string, r *http.Request) (*http.Response, error) { return nil, r.Context().Err() }, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Box(ctx, "b")
	if storage.CodeOf(err) != storage.Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Unavailable because of the context", err)
	}
	if _, err := s.Wait(ctx, "s", "r", 0, time.Now().Add(time.Hour)); err != context.Canceled { //nolint:errorlint // it must be the error itself
		t.Errorf("Wait: %v, want the error of the context", err)
	}
}

// unreliable is a Store on a real DynamoDB that loses answers. Once it is armed, DynamoDB
// executes the next requests of an operation, as many as lose says, but the client does
// not get the answers.
type unreliable struct {
	*Store
	operation string
	lose      int
	lost      func() // called when an answer is lost
}

func newUnreliable(t *testing.T) *unreliable {
	t.Helper()
	c, u := dial(t), &unreliable{lost: func() {}}
	lossy := transport(func(operation string, r *http.Request) (*http.Response, error) {
		resp, err := http.DefaultClient.Do(r)
		if err != nil || operation != u.operation || u.lose == 0 {
			return resp, err
		}
		_ = resp.Body.Close()
		u.lose--
		u.lost()
		return nil, io.ErrUnexpectedEOF
	})
	u.Store = New(client(*c.Options().BaseEndpoint, lossy), newTable(t, c), Options{Patience: time.Minute})
	return u
}

// conditional is a conditional write. A test calls prepare, then do, on a store of its own.
type conditional struct {
	operation   string
	prepare, do func(ctx context.Context, s *Store) error
}

func conditionals() map[string]conditional {
	x := storage.Session{ID: "s1", Expires: time.Now().Add(time.Hour)}
	it := storage.Item{Box: "b1", ID: "r1", State: storage.Waiting, Raw: []byte("1")}
	nothing := func(context.Context, *Store) error { return nil }
	first := func(done bool, err error) error {
		if err == nil && !done {
			err = errors.New("another was first")
		}
		return err
	}
	put := func(ctx context.Context, s *Store) error { return first(s.PutItem(ctx, it)) }
	claim := func(ctx context.Context, s *Store) error {
		_, err := s.Claim(ctx, "b1", "r1", 1)
		return err
	}
	return map[string]conditional{
		"Create": {"PutItem", nothing, func(ctx context.Context, s *Store) error { return s.Create(ctx, x) }},
		"Save": {
			"PutItem", func(ctx context.Context, s *Store) error { return s.Create(ctx, x) },
			func(ctx context.Context, s *Store) error {
				y := x
				y.Rev = 1
				return s.Save(ctx, y)
			},
		},
		"SaveBox of none": {"PutItem", nothing, func(ctx context.Context, s *Store) error { return s.SaveBox(ctx, storage.Box{ID: "b1"}) }},
		"SaveBox": {
			"PutItem", func(ctx context.Context, s *Store) error { return s.SaveBox(ctx, storage.Box{ID: "b1"}) },
			func(ctx context.Context, s *Store) error { return s.SaveBox(ctx, storage.Box{ID: "b1", Rev: 1}) },
		},
		"Append": {"PutItem", nothing, func(ctx context.Context, s *Store) error { return s.Append(ctx, aBatch(1, "1", "2")) }},
		"PutAnswer": {"PutItem", nothing, func(ctx context.Context, s *Store) error {
			return first(s.PutAnswer(ctx, storage.Answer{Session: "s1", Question: "q", Raw: []byte("1")}))
		}},
		"PutItem": {"PutItem", nothing, put},
		"Claim":   {"UpdateItem", put, claim},
		"DeleteItem": {
			"DeleteItem", func(ctx context.Context, s *Store) error { return errors.Join(put(ctx, s), claim(ctx, s)) },
			func(ctx context.Context, s *Store) error { return s.DeleteItem(ctx, "b1", "r1", 1) },
		},
	}
}

func TestALostAnswerThatTheDriverRepeatsIsNoRefusal(t *testing.T) {
	for name, w := range conditionals() {
		t.Run(name, func(t *testing.T) {
			u := newUnreliable(t)
			commontest.OK(t, w.prepare(t.Context(), u.Store))
			u.operation, u.lose = w.operation, 2
			if err := w.do(t.Context(), u.Store); err != nil || u.lose != 0 {
				t.Fatalf("%v, and %d answers were not lost", err, u.lose)
			}
		})
	}
}

func TestARepeatAfterUnavailableIsSafe(t *testing.T) {
	u := newUnreliable(t)
	expires := time.Now().Add(time.Hour)
	commontest.OK(t, u.Create(t.Context(), storage.Session{ID: "s1", Expires: expires}))
	for name, c := range map[string]struct {
		do    func(ctx context.Context) error
		again storage.Code
	}{
		"Append": {func(ctx context.Context) error { return u.Append(ctx, aBatch(1, "1", "2")) }, ""},
		"PutItem": {func(ctx context.Context) error {
			put, err := u.PutItem(ctx, storage.Item{Box: "b1", ID: "r1", State: storage.Waiting})
			commontest.EqualIn(t, "the item was put, and put again", false, put)
			return err
		}, ""},
		"Save": {func(ctx context.Context) error {
			return u.Save(ctx, storage.Session{ID: "s1", Rev: 1, Expires: expires})
		}, storage.Conflict}, // with itself
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			u.operation, u.lose, u.lost = "PutItem", 1, cancel
			if err := c.do(ctx); storage.CodeOf(err) != storage.Unavailable {
				t.Fatalf("%s whose answer is lost with its time: %v, want Unavailable", name, err)
			}
			if err := c.do(t.Context()); storage.CodeOf(err) != c.again {
				t.Fatalf("%s again: %v, want code %q", name, err, c.again)
			}
		})
	}
	page, err := u.Read(t.Context(), "s1", "r1", 0, 10)
	if err != nil || len(page.Events) != 2 {
		t.Errorf("%d events, %v, want the batch once", len(page.Events), err)
	}
}

// batchReply answers a BatchGetItem. It finds the first done keys, each with a record that
// has its id, and leaves the others undone.
func batchReply(t *testing.T, r *http.Request, done int) (*http.Response, error) {
	t.Helper()
	var request struct {
		RequestItems map[string]struct {
			Keys []map[string]map[string]string
		}
	}
	commontest.Check(t, json.NewDecoder(r.Body).Decode(&request))
	keys := request.RequestItems["table"].Keys
	found := []any{}
	for _, k := range keys[:min(done, len(keys))] {
		id := k["PK"]["S"][len("B#"):]
		found = append(found, map[string]any{
			"PK": k["PK"], "SK": k["SK"], "r": map[string]string{"N": "3"}, "j": map[string]string{"S": `{"ID":"` + id + `"}`},
		})
	}
	body := map[string]any{"Responses": map[string]any{"table": found}}
	if left := keys[min(done, len(keys)):]; len(left) > 0 {
		body["UnprocessedKeys"] = map[string]any{"table": map[string]any{"Keys": left, "ConsistentRead": true}}
	}
	b, err := json.Marshal(body)
	commontest.Check(t, err)
	return reply(200, string(b))
}

func TestKeysThatWereLeftUndoneAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := faked(func(_ string, r *http.Request) (*http.Response, error) {
			requests++
			return batchReply(t, r, []int{0, 1, 0, 0, 1}[requests-1])
		}, Options{})
		x, box, err := s.Load(t.Context(), "s", "b")
		if err != nil || x.ID != "s" || x.Rev != 3 || box.ID != "b" || box.Rev != 3 || requests != 5 {
			t.Errorf("session %v, box %v, %v after %d requests; want both after 5", x, box, err, requests)
		}
	})
}

func TestPartsThatWereLeftUnwrittenAreWrittenBeforeTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written, head := map[string]bool{}, false
		s := faked(func(operation string, r *http.Request) (*http.Response, error) {
			if operation != "BatchWriteItem" {
				head = operation == "PutItem"
				return reply(200, `{}`)
			}
			var request struct{ RequestItems map[string][]json.RawMessage }
			if err := json.NewDecoder(r.Body).Decode(&request); err != nil || head {
				t.Errorf("%v; batch written already: %t", err, head)
			}
			puts := request.RequestItems["table"]
			written[string(puts[0])] = true
			left, err := json.Marshal(map[string]any{"UnprocessedItems": map[string]any{"table": puts[1:]}})
			commontest.Check(t, err)
			return reply(200, string(left))
		}, Options{Bytes: 1 << 50})
		if err := s.Append(t.Context(), aBatch(1, strings.Repeat("x", 1<<20))); err != nil || len(written) != 3 || !head {
			t.Errorf("%v, %d parts and the batch (%t), want all 3", err, len(written), head)
		}
	})
}
