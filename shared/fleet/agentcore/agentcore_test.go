package agentcore_test

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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/agentcore"
	"github.com/dormouse-mcp/dormouse/shared/fleet/fleettest"
)

const (
	runtime = "arn:aws:bedrock-agentcore:us-east-1:111122223333:runtime/boxes-Abc123"
	// header carries the id of a session, 33 to 256 characters.
	header = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
)

// service is AgentCore's data plane as its API model describes it: the two operations,
// their paths, the header of the session, and the statuses of errors. It accepts room
// sessions, or any number if room is negative.
type service struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	status   int // of all answers, 0 for those of a service in order
	room     int
	sessions map[string]fleet.Invitation
	calls    []string
}

func serve(t *testing.T) *service {
	s := &service{t: t, room: -1, sessions: map[string]fleet.Invitation{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /runtimes/{arn}/invocations", s.invoke)
	mux.HandleFunc("POST /runtimes/{arn}/stopruntimesession", s.stop)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// session returns the session of a request. If ok is false, session has answered the
// request with an error.
func (s *service) session(w http.ResponseWriter, r *http.Request) (id string, ok bool) {
	s.calls = append(s.calls, r.URL.Path)
	id = r.Header.Get(header)
	switch {
	case s.status != 0:
		fail(w, s.status, "Exception")
	case !strings.Contains(r.Header.Get("Authorization"), "/us-east-1/bedrock-agentcore/aws4_request"):
		fail(w, http.StatusForbidden, "AccessDeniedException")
	case r.PathValue("arn") != runtime:
		fail(w, http.StatusNotFound, "ResourceNotFoundException")
	case len(id) < 33 || len(id) > 256:
		fail(w, http.StatusBadRequest, "ValidationException")
	default:
		return id, true
	}
	return "", false
}

func fail(w http.ResponseWriter, status int, kind string) {
	w.Header().Set("X-Amzn-Errortype", kind)
	w.WriteHeader(status)
}

func (s *service) invoke(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.session(w, r)
	if !ok {
		return
	}
	var i fleet.Invitation
	raw, err := io.ReadAll(r.Body)
	if err = errors.Join(err, json.Unmarshal(raw, &i)); err != nil {
		s.t.Errorf("the invitation: %v", err)
	}
	if _, there := s.sessions[id]; !there {
		if s.room == 0 {
			fail(w, http.StatusTooManyRequests, "ThrottlingException")
			return
		}
		s.room--
		s.sessions[id] = i
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, "{}")
}

func (s *service) stop(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.session(w, r)
	if !ok {
		return
	}
	if _, there := s.sessions[id]; !there {
		fail(w, http.StatusNotFound, "ResourceNotFoundException")
		return
	}
	delete(s.sessions, id)
	_, _ = io.WriteString(w, "{}")
}

func (s *service) open(t *testing.T, change func(*agentcore.Config)) *agentcore.Fleet {
	t.Helper()
	c := agentcore.Config{
		Region: "us-east-1", Endpoint: s.URL, Runtime: runtime,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	}
	if change != nil {
		change(&c)
	}
	f, err := agentcore.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFleetKeepsTheContractAsFarAsItsTraitsGo(t *testing.T) {
	fleettest.Run(t, func(t *testing.T) fleettest.Harness {
		s := serve(t)
		s.room = fleettest.Room
		return fleettest.Harness{Fleet: s.open(t, nil)}
	})
}

func TestAStartIsASessionOfItsOwnThatIsStopped(t *testing.T) {
	s := serve(t)
	f := s.open(t, nil)
	task := fleet.Task{ClientToken: "token-1", Box: "acme/echo", Server: "echo", Env: map[string]string{"A": "1"}}
	var id string
	for range 2 { // the answer to the first start was lost
		var err error
		if id, err = f.Run(t.Context(), task); err != nil || id != "agentcore/token-1" {
			t.Fatalf("%q, %v", id, err)
		}
	}
	want := fleet.Invitation{Task: id, ClientToken: "token-1", Box: "acme/echo", Server: "echo", Env: task.Env}
	for _, got := range s.sessions {
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	if _, err := f.Run(t.Context(), fleet.Task{ClientToken: "token-2", Box: "acme/echo"}); err != nil || len(s.sessions) != 2 {
		t.Errorf("%d sessions, %v", len(s.sessions), err)
	}
	for range 2 { // a session that has ended is no error
		if err := f.Stop(t.Context(), id, "why"); err != nil || len(s.sessions) != 1 {
			t.Errorf("%d sessions after the stop, %v", len(s.sessions), err)
		}
	}
}

func TestAnswersOfAgentCoreAreErrorsOfAFleet(t *testing.T) {
	s := serve(t)
	for status, want := range map[int]error{
		402: fleet.ErrCapacity, 429: fleet.ErrCapacity, 400: fleet.ErrInvalid, 404: fleet.ErrInvalid,
		403: fleet.ErrUnavailable, 409: fleet.ErrUnavailable, 424: fleet.ErrUnavailable, 500: fleet.ErrUnavailable,
	} {
		s.status = status
		if _, err := s.open(t, nil).Run(t.Context(), fleet.Task{ClientToken: "t", Box: "b"}); !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", status, err, want)
		}
	}
	before := len(s.calls)
	off := s.open(t, func(c *agentcore.Config) { c.Disabled = true })
	if _, err := off.Run(t.Context(), fleet.Task{ClientToken: "t"}); !errors.Is(err, fleet.ErrDisabled) || len(s.calls) != before {
		t.Errorf("switched off: %v", err)
	}
	if _, err := agentcore.New(agentcore.Config{Region: "r", Endpoint: "e", Runtime: "boxes"}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a runtime without ARN: %v", err)
	}
	s.Close()
	if _, err := s.open(t, nil).Run(t.Context(), fleet.Task{ClientToken: "t", Box: "b"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("no answer: %v", err)
	}
}
