package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Rates of calls, in calls a second. The first tenant always calls at quietRate, within
// its limit. The second tenant is silent, calls at limitRate, or calls at floodRate. It
// is silent twice in each turn: the ratio of these two figures shows the error of the
// other ratios.
const (
	quietRate = 40
	limitRate = 50
	floodRate = 10 * limitRate
)

// tenants measures the calls of a tenant beside another one, in turns, and the cost of a
// refused request compared with a call.
func tenants(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{
		flags: []string{"--access", "keys"},
		file:  map[string]any{"limits": map[string]any{"principal": fmt.Sprintf("%d/s burst %d", limitRate, limitRate)}},
	})
	if err != nil {
		return err
	}
	defer e.stop()
	if err := m.neighbours(ctx, e); err != nil {
		return err
	}
	return m.refusals(ctx, e)
}

// neighbours measures the calls of the first tenant beside a second one that is silent,
// at its limit or above it.
func (m *measurement) neighbours(ctx context.Context, e *endpoint) error {
	quiet, err := m.tenant(ctx, e, "quiet")
	if err != nil {
		return err
	}
	greedy, err := m.tenant(ctx, e, "greedy")
	if err != nil {
		return err
	}
	kinds := []struct {
		name string
		rate int
	}{{"alone", 0}, {"alone again", 0}, {"beside a tenant at its limit", limitRate}, {"beside a flood of ten times its limit", floodRate}}
	middle, late := map[string][]float64{}, map[string][]float64{} // p50 and p95 by turn
	refused := 0
	for turn := range 16 {
		for i := range kinds {
			kind := kinds[(i+turn)%len(kinds)]
			ctx, stop := context.WithCancel(ctx)
			var other sync.WaitGroup
			var answers outcome
			if kind.rate > 0 {
				other.Go(func() { answers = paced(ctx, greedy, kind.rate, time.Hour) })
			}
			own := paced(ctx, quiet, quietRate, m.scale(2*time.Second))
			stop()
			other.Wait()
			if own.refused > 0 || own.failed != nil {
				return fmt.Errorf("%s, the tenant within its limit was refused %d times: %w", kind.name, own.refused, own.failed)
			}
			if turn == 0 {
				continue // all processes start in this turn
			}
			if kind.rate == floodRate {
				refused += answers.refused
			}
			middle[kind.name] = append(middle[kind.name], quantile(own.took, 0.5))
			late[kind.name] = append(late[kind.name], quantile(own.took, 0.95))
		}
	}
	if refused == 0 {
		return errors.New("the flood was not refused")
	}
	base := kinds[0].name
	m.add("p50 "+base, "ms", spreadOf(middle[base]).Mid)
	m.add("p95 "+base, "ms", spreadOf(late[base]).Mid)
	for _, kind := range kinds[1:] {
		m.add("p50 over that, "+kind.name, "", over(middle[kind.name], middle[base]))
		m.add("p95 over that, "+kind.name, "", over(late[kind.name], late[base]))
	}
	return nil
}

// over returns the median of the ratios of figures of the same turn.
func over(values, bases []float64) float64 {
	var ratios []float64
	for i := range values {
		ratios = append(ratios, values[i]/bases[i])
	}
	return spreadOf(ratios).Mid
}

// refusals measures the CPU time of a call of a tenant without a limit, and of a refused
// request of another tenant.
func (m *measurement) refusals(ctx context.Context, e *endpoint) error {
	free, err := m.tenant(ctx, e, "free", "principal=off")
	if err != nil {
		return err
	}
	spent, err := m.tenant(ctx, e, "spent", "principal=1/h burst 1")
	if err != nil {
		return err
	}
	var calls, refusals []float64
	for turn := range 5 {
		for _, c := range []*httpClient{free, spent} {
			before, err := e.cpu()
			if err != nil {
				return err
			}
			o := unpaced(ctx, c, m.scale(time.Second))
			after, err := e.cpu()
			switch {
			case err != nil:
				return err
			case c == free && (o.refused > 0 || o.failed != nil):
				return fmt.Errorf("the tenant without a limit was refused %d times: %w", o.refused, o.failed)
			case turn == 0:
			case c == free:
				calls = append(calls, ms(after-before)/float64(max(1, len(o.took))))
			default:
				refusals = append(refusals, ms(after-before)/float64(max(1, o.refused)))
			}
		}
	}
	m.add("CPU a call", "ms", spreadOf(calls).Mid)
	m.add("CPU a refused request", "ms", spreadOf(refusals).Mid)
	m.add("CPU of that over a call's", "", over(refusals, calls))
	return nil
}

// tenant makes a key of a new tenant with limits of its own, and returns a client with it
// that has made one call.
func (m *measurement) tenant(ctx context.Context, e *endpoint, name string, limits ...string) (*httpClient, error) {
	if len(limits) > 0 {
		if _, err := m.dormouse(ctx, e, append([]string{"quotas", "set", name, "--servers", e.file()}, limits...)...); err != nil {
			return nil, err
		}
	}
	key, err := m.dormouse(ctx, e, "keys", "create", name, "--tenant", name, "--server", "echo", "--servers", e.file())
	if err != nil {
		return nil, err
	}
	c := newHTTPClient(e.address, "2025-06-18", true)
	c.key = key
	if _, err := timed(ctx, c.open); err != nil {
		return nil, err
	}
	_, err = timed(ctx, func(ctx context.Context) error { return hello(ctx, c) })
	return c, err
}

// outcome is what became of the calls of a client.
type outcome struct {
	took    []time.Duration // of those that were executed
	refused int
	failed  error // the last of other errors
}

func (o *outcome) one(ctx context.Context, c *httpClient) {
	var result json.RawMessage
	took, err := timed(ctx, func(ctx context.Context) (err error) {
		result, err = c.call(ctx, "echo", map[string]any{"message": "hello"})
		return err
	})
	var status statusError
	switch {
	case errors.As(err, &status) && status.status == 429, err == nil && bytes.Contains(result, []byte(`"isError":true`)):
		o.refused++
	case err == nil:
		o.took = append(o.took, took)
	case ctx.Err() == nil:
		o.failed = err
	}
}

// callers is the most calls that one client has in flight.
const callers = 4

// paced makes calls at a steady rate, for some time or until ctx ends. A call that cannot
// begin in its time is left out.
func paced(ctx context.Context, c *httpClient, rate int, lasts time.Duration) outcome {
	ctx, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	return several(ctx, c, func() bool {
		select {
		case <-tick.C:
			return true
		case <-ctx.Done():
			return false
		}
	})
}

// unpaced makes one call after another.
func unpaced(ctx context.Context, c *httpClient, lasts time.Duration) outcome {
	ctx, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	return several(ctx, c, func() bool { return ctx.Err() == nil })
}

// several makes calls while next allows another one. The calls outlive ctx.
func several(ctx context.Context, c *httpClient, next func() bool) (all outcome) {
	var parts [callers]outcome
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			for next() {
				parts[i].one(context.WithoutCancel(ctx), c)
			}
		})
	}
	wg.Wait()
	for _, p := range parts {
		all.took = slices.Concat(all.took, p.took)
		all.refused += p.refused
		if p.failed != nil {
			all.failed = p.failed
		}
	}
	return all
}
