// Package pooltest has an HTTP API of a [process.Pool], and its client. In tests, an emulator of
// AWS runs each Lambda function as a program. These programs start boxes in the emulator's pool.
// Programs that are built for AWS (-tags aws) do not contain this package.
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

// Handler serves p to every [Client]. It does not authenticate requests: its caller must admit
// only programs that may start other programs.
//
//	POST   /tasks               fleet.Task → the id
//	DELETE /tasks/{id}?reason=             → null
//	GET    /tasks                          → []fleet.Status
//
// Bodies are JSON. An error is a text instead, with status 400 for [fleet.ErrInvalid], 429 for
// [fleet.ErrCapacity], and 503 for all others.
func Handler(p *process.Pool) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(w http.ResponseWriter, r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := do(w, r)
			if err != nil {
				http.Error(w, err.Error(), statusOf(err))
				return
			}
			_ = json.NewEncoder(w).Encode(v) // the caller may have gone
		})
	}
	handle("POST /tasks", func(w http.ResponseWriter, r *http.Request) (any, error) {
		var t fleet.Task
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&t); err != nil {
			return nil, fmt.Errorf("%w: the body is not a task: %w", fleet.ErrInvalid, err)
		}
		return p.Run(r.Context(), t)
	})
	handle("DELETE /tasks/{id}", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return nil, p.Stop(r.Context(), r.PathValue("id"), r.URL.Query().Get("reason"))
	})
	handle("GET /tasks", func(_ http.ResponseWriter, r *http.Request) (any, error) { return p.Tasks(r.Context()) })
	return mux
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, fleet.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, fleet.ErrCapacity):
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}

func errorOf(status int) error {
	switch status {
	case http.StatusBadRequest:
		return fleet.ErrInvalid
	case http.StatusTooManyRequests:
		return fleet.ErrCapacity
	}
	return fleet.ErrUnavailable
}

// Client is a [fleet.Fleet] that runs tasks in the pool of another program, through [Handler].
// It is safe for concurrent use.
type Client struct {
	base  string
	since time.Time
	http  *http.Client
}

var _ fleet.Fleet = (*Client)(nil)

// NewClient returns a client of the pool whose [Handler] is served at base, a URL without
// a slash at its end. NewClient does not connect, and the client needs no closing. since must be
// the pool's [fleet.Traits].Since.
func NewClient(base string, since time.Time) *Client {
	return &Client{base: base, since: since, http: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
}

// Run implements [fleet.Fleet]. If the pool cannot be reached, the error is
// [fleet.ErrUnavailable].
func (c *Client) Run(ctx context.Context, t fleet.Task) (id string, err error) {
	body, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("%w: encode the task: %w", fleet.ErrInvalid, err)
	}
	err = c.call(ctx, http.MethodPost, "/tasks", body, &id)
	return id, err
}

// Stop implements [fleet.Fleet].
func (c *Client) Stop(ctx context.Context, id, reason string) error {
	if id == "" {
		return nil // no task has the id "", and a path /tasks/ would match no route
	}
	return c.call(ctx, http.MethodDelete, "/tasks/"+url.PathEscape(id)+"?reason="+url.QueryEscape(reason), nil, new(any))
}

// Tasks implements [fleet.Fleet].
func (c *Client) Tasks(ctx context.Context) (all []fleet.Status, err error) {
	err = c.call(ctx, http.MethodGet, "/tasks", nil, &all)
	return all, err
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
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return fmt.Errorf("%w: the pool answers %s", errorOf(res.StatusCode), text)
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return fmt.Errorf("%w: read the answer: %w", fleet.ErrUnavailable, err)
	}
	return nil
}
