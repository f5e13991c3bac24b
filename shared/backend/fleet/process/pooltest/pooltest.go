// Package pooltest lets the functions' programs use a [process.Pool] of another program, as
// the emulator does in tests. Programs built for AWS (-tags aws) do not contain it.
package pooltest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
)

// The HTTP API between Client and a pool. Bodies are JSON.
//
//	POST   /tasks               fleet.Task    → 200 runAnswer
//	DELETE /tasks/{id}?reason=                → 204
//	GET    /tasks                             → 200 tasksAnswer
//
// A failure is an errorAnswer with status 400, 403, 429 or 503.
type (
	runAnswer struct {
		ID string `json:"id"`
	}
	tasksAnswer struct {
		Tasks []fleet.Status `json:"tasks"`
	}
	errorAnswer struct {
		Code    string `json:"code"` // invalid, capacity, disabled or unavailable
		Message string `json:"message"`
	}
)

const (
	maxTaskBytes  = 1 << 20
	maxErrorBytes = 64 << 10
)

// Handler returns the API of a pool that [Client] speaks. It does not authenticate: its caller
// must admit only programs that may start others.
func Handler(p *process.Pool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tasks", func(w http.ResponseWriter, r *http.Request) {
		var t fleet.Task
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTaskBytes)).Decode(&t); err != nil {
			answerError(w, fmt.Errorf("%w: the body is not a task: %w", fleet.ErrInvalid, err))
			return
		}
		id, err := p.Run(r.Context(), t)
		if err != nil {
			answerError(w, err)
			return
		}
		answer(w, http.StatusOK, runAnswer{ID: id})
	})
	mux.HandleFunc("DELETE /tasks/{id}", func(w http.ResponseWriter, r *http.Request) {
		if err := p.Stop(r.Context(), r.PathValue("id"), r.URL.Query().Get("reason")); err != nil {
			answerError(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /tasks", func(w http.ResponseWriter, r *http.Request) {
		list, err := p.Tasks(r.Context())
		if err != nil {
			answerError(w, err)
			return
		}
		answer(w, http.StatusOK, tasksAnswer{Tasks: list})
	})
	return mux
}

func answerError(w http.ResponseWriter, err error) {
	status, code := http.StatusServiceUnavailable, "unavailable"
	switch {
	case errors.Is(err, fleet.ErrInvalid):
		status, code = http.StatusBadRequest, "invalid"
	case errors.Is(err, fleet.ErrCapacity):
		status, code = http.StatusTooManyRequests, "capacity"
	}
	answer(w, status, errorAnswer{Code: code, Message: err.Error()})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The caller may have gone.
	_ = json.NewEncoder(w).Encode(v)
}

// Client is the [fleet.Fleet] of a program that does not hold the pool itself.
// It is safe for concurrent use.
type Client struct {
	base  string
	since time.Time
	http  *http.Client
}

var _ fleet.Fleet = (*Client)(nil)

// NewClient returns a client of the pool whose Handler is served at base, a URL without
// a slash at its end. It does not connect yet, and needs no closing. since is the Since of
// the pool's traits.
func NewClient(base string, since time.Time) *Client {
	return &Client{base: base, since: since, http: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
}

// Run implements [fleet.Fleet]. An unreachable pool is [fleet.ErrUnavailable].
func (c *Client) Run(ctx context.Context, t fleet.Task) (string, error) {
	body, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("%w: encode the task: %w", fleet.ErrInvalid, err)
	}
	var a runAnswer
	err = c.call(ctx, http.MethodPost, "/tasks", body, &a)
	return a.ID, err
}

// Stop implements [fleet.Fleet].
func (c *Client) Stop(ctx context.Context, id, reason string) error {
	if id == "" {
		return nil // no task has this id, and no path can name it
	}
	return c.call(ctx, http.MethodDelete, "/tasks/"+url.PathEscape(id)+"?reason="+url.QueryEscape(reason), nil, nil)
}

// Tasks implements [fleet.Fleet].
func (c *Client) Tasks(ctx context.Context) ([]fleet.Status, error) {
	var a tasksAnswer
	err := c.call(ctx, http.MethodGet, "/tasks", nil, &a)
	return a.Tasks, err
}

// Traits implements [fleet.Fleet].
func (c *Client) Traits(string) fleet.Traits {
	return fleet.Traits{Lists: true, Since: c.since}
}

func (c *Client) call(ctx context.Context, method, path string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %w", fleet.ErrInvalid, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", fleet.ErrUnavailable, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= 300 {
		return readError(res)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return fmt.Errorf("%w: read the answer: %w", fleet.ErrUnavailable, err)
	}
	return nil
}

// readError returns the fleet error for an error answer.
func readError(res *http.Response) error {
	var a errorAnswer
	if err := json.NewDecoder(io.LimitReader(res.Body, maxErrorBytes)).Decode(&a); err != nil {
		return fmt.Errorf("%w: status %d with no error in it", fleet.ErrUnavailable, res.StatusCode)
	}
	kind := fleet.ErrUnavailable
	switch a.Code {
	case "invalid":
		kind = fleet.ErrInvalid
	case "capacity":
		kind = fleet.ErrCapacity
	}
	return &remoteError{kind: kind, text: a.Message}
}

// remoteError is an error of the pool. Its text already names the kind.
type remoteError struct {
	kind error
	text string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }
