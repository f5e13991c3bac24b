package lambda_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/fleettest"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/lambda"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// service stands for Lambda's API. It answers with status and keeps the requests.
type service struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	room   int // invocations until it throttles; below 0 any number
	paths  []string
	heads  []http.Header
	events []fleet.Invitation
}

func serve(t *testing.T) *service {
	s := &service{status: http.StatusAccepted, room: -1}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var i fleet.Invitation
		raw, _ := io.ReadAll(r.Body)
		commontest.CheckIn(t, "the event", json.Unmarshal(raw, &i))
		if s.room == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		s.room--
		s.paths, s.heads, s.events = append(s.paths, r.URL.Path), append(s.heads, r.Header), append(s.events, i)
		w.WriteHeader(s.status)
	}))
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, endpoint string, change func(*lambda.Config)) *lambda.Fleet {
	t.Helper()
	c := lambda.Config{
		Region: "us-east-1", Endpoint: endpoint, Sizes: []lambda.Size{{2048, "box-2048"}, {512, "box-512"}, {1024, "box-1024"}},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	}
	if change != nil {
		change(&c)
	}
	f, err := lambda.New(c)
	commontest.OK(t, err)
	return f
}

func TestFleetKeepsTheContractAsFarAsItsTraitsGo(t *testing.T) {
	fleettest.Run(t, func(t *testing.T) fleettest.Harness {
		s := serve(t)
		s.room = fleettest.Room
		return fleettest.Harness{Fleet: open(t, s.URL, nil)}
	})
}

func TestAStartIsAnEventForTheTenantOfItsBox(t *testing.T) {
	s := serve(t)
	f := open(t, s.URL, nil)
	task := fleet.Task{ClientToken: "token-1", Box: "acme/echo", Server: "echo", Env: map[string]string{"A": "1"}}
	id, err := f.Run(t.Context(), task)
	if err != nil || id != "lambda/token-1" {
		t.Fatalf("%q, %v", id, err)
	}
	commontest.Equal(t, "/2015-03-31/functions/box-512/invocations", s.paths[0])
	h := s.heads[0]
	if h.Get("X-Amz-Invocation-Type") != "Event" || !strings.Contains(h.Get("Authorization"), "x-amz-tenant-id") {
		t.Errorf("%v", h)
	}
	commontest.Same(t, fleet.Invitation{Task: id, ClientToken: "token-1", Box: "acme/echo", Server: "echo", Env: task.Env}, s.events[0])
	task.ClientToken = "token-2"
	other := fleet.Task{ClientToken: "token-3", Box: "umbrella/echo", Server: "echo"}
	for _, next := range []fleet.Task{task, other} {
		_, err := f.Run(t.Context(), next)
		commontest.OK(t, err)
	}
	tenants := [3]string{}
	for i := range tenants {
		tenants[i] = s.heads[i].Get("X-Amz-Tenant-Id")
	}
	if tenants[0] == "" || tenants[0] != tenants[1] || tenants[0] == tenants[2] || strings.Contains(tenants[0], "acme") {
		t.Errorf("tenants %v", tenants)
	}
}

func TestATaskGetsTheSmallestFunctionWithEnoughMemory(t *testing.T) {
	s := serve(t)
	need := 0
	f := open(t, s.URL, func(c *lambda.Config) { c.Memory = func(fleet.Task) int { return need } })
	for n, want := range map[int]string{0: "box-512", 512: "box-512", 513: "box-1024", 2048: "box-2048"} {
		need = n
		if _, err := f.Run(t.Context(), fleet.Task{ClientToken: "t", Box: "b"}); err != nil || !strings.Contains(s.paths[len(s.paths)-1], want+"/") {
			t.Errorf("%d MB: %v, %v", n, s.paths, err)
		}
	}
	need = 2049
	if _, err := f.Run(t.Context(), fleet.Task{ClientToken: "t", Box: "b"}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("too much: %v", err)
	}
}

func TestAnswersOfLambdaAreErrorsOfAFleet(t *testing.T) {
	s := serve(t)
	for status, want := range map[int]error{429: fleet.ErrCapacity, 404: fleet.ErrInvalid, 413: fleet.ErrInvalid, 403: fleet.ErrUnavailable, 500: fleet.ErrUnavailable} {
		s.status = status
		if _, err := open(t, s.URL, nil).Run(t.Context(), fleet.Task{ClientToken: "t", Box: "b"}); !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", status, err, want)
		}
	}
	s.Close()
	if _, err := open(t, s.URL, nil).Run(t.Context(), fleet.Task{ClientToken: "t"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("no answer: %v", err)
	}
}

// sleeper stands for Lambda after weeks without an invocation: the function is Inactive, the
// first invocation fails and makes it Pending, and it is ready after some time.
type sleeper struct {
	status int
	fault  string
	takes  time.Duration // from the first invocation
	first  time.Time
	asked  int
}

func (s *sleeper) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if s.asked++; s.first.IsZero() {
		s.first = time.Now()
	}
	if time.Since(s.first) < s.takes {
		w.Header().Set("X-Amzn-Errortype", s.fault+":http://internal.amazon.com/coral/com.amazonaws.lambda/")
		w.WriteHeader(s.status)
	} else {
		w.WriteHeader(http.StatusAccepted)
	}
	return w.Result(), r.Context().Err()
}

func TestAFunctionThatWasIdleForWeeksIsWaitedFor(t *testing.T) {
	open := func(t *testing.T, s *sleeper) *lambda.Fleet {
		return open(t, "http://lambda", func(c *lambda.Config) { c.HTTPClient = &http.Client{Transport: s} })
	}
	task := fleet.Task{ClientToken: "t", Box: "b"}
	for fault, status := range map[string]int{"ResourceConflictException": 409, "ResourceNotReadyException": 502} {
		synctest.Test(t, func(t *testing.T) {
			s := &sleeper{status: status, fault: fault, takes: 8 * time.Second}
			if id, err := open(t, s).Run(t.Context(), task); err != nil || id != "lambda/t" {
				t.Errorf("%s: %q after %d requests: %v", fault, id, s.asked, err)
			}
		})
	}
	// The second attempt goes to another place, which needs some time of its caller.
	synctest.Test(t, func(t *testing.T) {
		s := &sleeper{status: 409, fault: "ResourceConflictException", takes: time.Hour}
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		if _, err := open(t, s).Run(ctx, task); !errors.Is(err, fleet.ErrUnavailable) || time.Since(s.first) > 15*time.Second {
			t.Errorf("a function that never gets ready was given up after %v: %v", time.Since(s.first), err)
		}
	})
}
