package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// loss measures what is lost in two cases: a connection is cut in the middle of a call, or
// the host is stopped or killed and started again with its files on disk.
func loss(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{})
	if err != nil {
		return err
	}
	defer func() { e.stop() }()
	for _, c := range cutCases() {
		if err := m.cuts(ctx, e, c); err != nil {
			return err
		}
	}
	for _, how := range []struct {
		name string
		end  func(*endpoint)
	}{{"stopped", func(e *endpoint) { e.stop() }}, {"killed", func(e *endpoint) { e.kill() }}} {
		clients, err := open(ctx, e, 5, 2)
		if err != nil {
			return err
		}
		for _, c := range clients {
			if err := hello(ctx, c); err != nil {
				return err
			}
		}
		how.end(e)
		again, err := m.start(ctx, launch{data: e.data})
		if err != nil {
			return err
		}
		e = again
		alive := 0
		for _, c := range clients {
			c.drop()
			c.address = e.address
			if _, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err == nil {
				alive++
			}
		}
		m.add("sessions left, "+how.name, "%", 100*float64(alive)/float64(len(clients)))
	}
	return nil
}

// cutCall is how long a call would take if it were not cut.
const cutCall = 2000 * time.Millisecond

// cutCase says when a call is cut and when its client comes back.
type cutCase struct {
	version  string
	progress bool          // the server reports progress before the cut
	after    time.Duration // from the call until it is cut
	back     time.Duration // from the call until its client comes back
}

func (c cutCase) name() string {
	what := fmt.Sprintf("%s cut at %.1f s", c.version, c.after.Seconds())
	if c.progress {
		what += " after progress"
	}
	if c.back > cutCall {
		what += ", back after the answer"
	}
	return what
}

func cutCases() (all []cutCase) {
	const early, late, at, end = 300 * time.Millisecond, 1300 * time.Millisecond, 10 * time.Millisecond, cutCall + 300*time.Millisecond
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		all = append(all,
			cutCase{version, false, early, early + at}, cutCase{version, true, early, early + at},
			cutCase{version, false, late, late + at}, cutCase{version, true, late, end})
	}
	return all
}

// cuts measures four calls at the same time, whose connections are cut as the argument how says.
func (m *measurement) cuts(ctx context.Context, e *endpoint, how cutCase) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var took []time.Duration
	var failed error
	const calls = 4
	for range calls {
		wg.Go(func() {
			c := newHTTPClient(e.address, true)
			c.version = how.version
			d, got, err := cutCallOf(ctx, c, how)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			}
			if got {
				took = append(took, d)
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	m.add(how.name(), "% recovered", 100*float64(len(took))/calls)
	if how.version == "2025-11-25" && how.back > cutCall {
		m.add("until that answer p50", "ms", quantile(took, 0.5))
	}
	return nil
}

// cutCallOf calls the tool "slow" in a new session, drops the connection, and comes back for the
// answer. If the client got the answer, got is true, and took is how long after it came back. To get
// no answer is no error.
func cutCallOf(ctx context.Context, c *httpClient, how cutCase) (took time.Duration, got bool, err error) {
	defer c.drop()
	if _, err := timed(ctx, c.open); err != nil {
		return 0, false, err
	}
	id := c.last.Add(1)
	body, err := request(id, "tools/call", callParams("slow", map[string]any{"milliseconds": cutCall.Milliseconds(), "progress": how.progress}))
	if err != nil {
		return 0, false, err
	}
	began := time.Now()
	cut, cancel := context.WithTimeout(ctx, how.after)
	defer cancel()
	last := ""
	if res, err := c.post(cut, body); err == nil { //nolint:bodyclose // read closes it
		_, _ = read(res, id, func(e wire.SSE) { // this call is cut on purpose
			if e.ID != "" {
				last = e.ID
			}
		})
	}
	if err := storage.Rest(ctx, time.Until(began.Add(how.back))); err != nil {
		return 0, false, err
	}
	if last == "" {
		return 0, false, nil
	}
	back := time.Now()
	got = c.fetch(ctx, id, last, 5*time.Second)
	return time.Since(back), got, nil
}

// fetch asks with Last-Event-ID until the answer is there. A host that has not noticed the
// cut yet answers 409.
func (c *httpClient) fetch(ctx context.Context, id int64, last string, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for ctx.Err() == nil {
		res, err := c.do(ctx, http.MethodGet, c.address, http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {last}}, nil) //nolint:bodyclose // read closes it
		var status statusError
		switch {
		case errors.As(err, &status) && status.status == http.StatusConflict:
		case err != nil:
			return false
		default:
			if _, err := read(res, id, func(e wire.SSE) {
				if e.ID != "" {
					last = e.ID
				}
			}); err == nil {
				return true
			}
		}
		_ = storage.Rest(ctx, 100*time.Millisecond) // the loop ends with ctx
	}
	return false
}
