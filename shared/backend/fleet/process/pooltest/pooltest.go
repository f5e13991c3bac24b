// Package pooltest has an HTTP API of a [process.Pool], and its client. In tests, an emulator of AWS
// serves its pool with this API. The programs that it runs as Lambda functions start boxes there.
// Programs that are built for AWS (-tags aws) do not contain this package.
package pooltest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
)

// An answer is the body of every response. In the test of upgrades, programs of earlier releases
// read it too.
type answer struct {
	ID      string         `json:"id,omitempty"`    // of the task that was started
	Tasks   []fleet.Status `json:"tasks,omitempty"` // the result of [fleet.Fleet].Tasks
	Code    string         `json:"code,omitempty"`  // a key of codes; "" if nothing failed
	Message string         `json:"message,omitempty"`
}

// codes has the error of each answer's code.
var codes = map[string]error{"invalid": fleet.ErrInvalid, "capacity": fleet.ErrCapacity, "unavailable": fleet.ErrUnavailable}

// Handler serves p to every [Client]. It does not authenticate requests: its caller must admit
// only programs that may start other programs.
//
//	POST   /tasks               starts the [fleet.Task] of the body
//	DELETE /tasks/{id}?reason=  stops a task
//	GET    /tasks               lists the tasks
//
// The status of an answer with an error is 503.
func Handler(p *process.Pool) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(w http.ResponseWriter, r *http.Request) (answer, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			a, err := do(w, r)
			if err != nil {
				a = answer{Code: "unavailable", Message: err.Error()}
				for code, known := range codes {
					if errors.Is(err, known) {
						a.Code = code
					}
				}
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_ = json.NewEncoder(w).Encode(a) // the caller may have gone
		})
	}
	handle("POST /tasks", func(w http.ResponseWriter, r *http.Request) (answer, error) {
		var t fleet.Task
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&t); err != nil {
			return answer{}, fmt.Errorf("%w: the body is not a task: %w", fleet.ErrInvalid, err)
		}
		id, err := p.Run(r.Context(), t)
		return answer{ID: id}, err
	})
	handle("DELETE /tasks/{id}", func(_ http.ResponseWriter, r *http.Request) (answer, error) {
		return answer{}, p.Stop(r.Context(), r.PathValue("id"), r.URL.Query().Get("reason"))
	})
	handle("GET /tasks", func(_ http.ResponseWriter, r *http.Request) (answer, error) {
		all, err := p.Tasks(r.Context())
		return answer{Tasks: all}, err
	})
	return mux
}

// Client is a [fleet.Fleet] that runs tasks in the pool of another program, through [Handler].
// It is safe for concurrent use.
type Client struct {
	base  string
	since time.Time
	http  *http.Client
}

var _ fleet.Fleet = (*Client)(nil)

// NewClient returns a client of the pool whose [Handler] is served at base, a URL without a
// slash at its end. since must be the pool's [fleet.Traits].Since.
func NewClient(base string, since time.Time) *Client {
	return &Client{base: base, since: since, http: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
}

// Run implements [fleet.Fleet]. If the pool cannot be reached, the error is
// [fleet.ErrUnavailable].
func (c *Client) Run(ctx context.Context, t fleet.Task) (string, error) {
	body, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("%w: encode the task: %w", fleet.ErrInvalid, err)
	}
	a, err := c.call(ctx, http.MethodPost, "/tasks", body)
	return a.ID, err
}

// Stop implements [fleet.Fleet].
func (c *Client) Stop(ctx context.Context, id, reason string) error {
	if id == "" {
		return nil // no task has the id "", and a path /tasks/ would match no route
	}
	_, err := c.call(ctx, http.MethodDelete, "/tasks/"+url.PathEscape(id)+"?reason="+url.QueryEscape(reason), nil)
	return err
}

// Tasks implements [fleet.Fleet].
func (c *Client) Tasks(ctx context.Context) ([]fleet.Status, error) {
	a, err := c.call(ctx, http.MethodGet, "/tasks", nil)
	return a.Tasks, err
}

// Traits implements [fleet.Fleet].
func (c *Client) Traits(string) fleet.Traits {
	return fleet.Traits{Lists: true, Since: c.since}
}

func (c *Client) call(ctx context.Context, method, path string, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", fleet.ErrInvalid, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", fleet.ErrUnavailable, err)
	}
	defer func() { _ = res.Body.Close() }()
	var a answer
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		return answer{}, fmt.Errorf("%w: read the answer: %w", fleet.ErrUnavailable, err)
	}
	if a.Code != "" {
		return answer{}, fmt.Errorf("%w: the pool answers %s", codes[a.Code], a.Message)
	}
	return a, nil
}
