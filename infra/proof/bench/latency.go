package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// latency measures initialize, the first call, and calls one at a time and 16 at a time.
func latency(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{})
	if err != nil {
		return err
	}
	defer e.stop()
	calls, err := flat(ctx, e, m.scale(time.Second))
	if err != nil {
		return err
	}
	m.add("calls before", "", float64(calls))
	if err := openings(ctx, e, m); err != nil {
		return err
	}
	for _, at := range []struct {
		clients int
		lasts   time.Duration
	}{{1, m.scale(2 * time.Second)}, {16, m.scale(3 * time.Second)}} {
		clients, err := open(ctx, e, at.clients, 4)
		if err != nil {
			return err
		}
		for _, c := range clients { // each session has its process before the measurement begins
			if _, err := timed(ctx, func(ctx context.Context) error { return echo(ctx, c, "first") }); err != nil {
				return err
			}
		}
		l, err := press(ctx, e, clients, at.lasts, hello)
		if err != nil {
			return err
		}
		m.load(at.clients, l)
		if at.clients == 16 {
			u, err := treeUsage(e.pid())
			if err != nil {
				return err
			}
			m.add("RSS", "MB", float64(u.RSS)/1e6)
			m.add("PSS", "MB", float64(u.PSS)/1e6)
			m.add("RSS without servers", "MB", float64(u.Host)/1e6)
			m.programs(l)
		}
		finishAll(ctx, clients)
	}
	return nil
}

func hello(ctx context.Context, c *httpClient) error { return echo(ctx, c, "hello") }

// warm makes calls with 16 clients for a time, so that the host has started all its processes.
func warm(ctx context.Context, e *endpoint, lasts time.Duration) error {
	clients, err := open(ctx, e, 16, 4)
	if err != nil {
		return err
	}
	defer finishAll(ctx, clients)
	l, err := press(ctx, e, clients, lasts, hello)
	if err == nil && len(l.took) == 0 {
		err = fmt.Errorf("no call of the warm-up was answered: %w", l.first)
	}
	return err
}

// flat makes calls one at a time until they get no faster: until two windows in a row are not 3 %
// faster than the best before them. Programs in JavaScript need thousands of calls. The result
// calls is how many calls flat made.
func flat(ctx context.Context, e *endpoint, window time.Duration) (calls int, err error) {
	if err := warm(ctx, e, window); err != nil {
		return 0, err
	}
	clients, err := open(ctx, e, 1, 1)
	if err != nil {
		return 0, err
	}
	defer finishAll(ctx, clients)
	best, same := math.Inf(1), 0
	for range mostWindows {
		l, err := press(ctx, e, clients, window, hello)
		if err != nil {
			return calls, err
		}
		calls += len(l.took)
		if p50 := quantile(l.took, 0.5); p50 < 0.97*best {
			best, same = p50, 0
		} else if same++; same == 2 {
			break
		}
	}
	return calls, nil
}

// mostWindows is the largest number of windows in [flat].
const mostWindows = 20

// openings measures how long a new client waits for initialize and for its first call.
func openings(ctx context.Context, e *endpoint, m *measurement) error {
	var inits, firsts []time.Duration
	before, err := e.cpu()
	if err != nil {
		return err
	}
	n := 0
	for ends := time.Now().Add(m.scale(2 * time.Second)); n < 20 && time.Now().Before(ends); n++ {
		c := e.client()
		took, err := timed(ctx, c.open)
		if err != nil {
			return err
		}
		inits = append(inits, took)
		if took, err = timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err != nil {
			return err
		}
		firsts = append(firsts, took)
		finishAll(ctx, []*httpClient{c})
	}
	after, err := e.cpu()
	if err != nil {
		return err
	}
	if e.peer.keeps {
		m.add("initialize p50", "ms", quantile(inits, 0.5))
		m.add("CPU of a session of one call", "ms", ms(after-before)/float64(n))
	}
	m.add("first call p50", "ms", quantile(firsts, 0.5))
	return nil
}

// load adds the metrics of l, the load of this number of clients.
func (m *measurement) load(clients int, l load) {
	at := fmt.Sprintf(" at %d", clients)
	m.add("p50"+at, "ms", quantile(l.took, 0.50))
	m.add("p95"+at, "ms", quantile(l.took, 0.95))
	m.add("p99"+at, "ms", quantile(l.took, 0.99))
	m.add("calls"+at, "/s", l.perSecond())
	cpu := l.perCall()
	if len(l.took) == 0 {
		cpu = math.NaN()
	}
	m.add("CPU a call"+at, "ms", cpu)
	m.add("failed"+at, "", float64(l.failed))
	if l.first != nil {
		m.say("%d calls failed at %d; the first: %v", l.failed, clients, l.first)
	}
}

// programs adds the CPU time that each program used for a call.
func (m *measurement) programs(l load) {
	for _, name := range slices.Sorted(maps.Keys(l.programs)) {
		if each := ms(l.programs[name]) / float64(max(1, len(l.took))); each >= 0.01 {
			m.found = append(m.found, sample{programsTable, m.round, m.peer.name, name, "ms", each})
		}
	}
}
