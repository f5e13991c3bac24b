package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// wakeBoxes is how many boxes of Dormouse each round wakes in each of the two ways.
const wakeBoxes = 12

// wake measures the first call after a rest in a session that has been used before. For
// Dormouse it measures two kinds of wakes: with everything asleep, by phase, and with
// only the functions awake.
func wake(ctx context.Context, m *measurement) error {
	if !strings.HasPrefix(m.peer.name, "dormouse") {
		return wakeOthers(ctx, m)
	}
	names := make([]string, 2*wakeBoxes)
	for i := range names {
		names[i] = fmt.Sprintf("echo%02d", i)
	}
	e, err := m.start(ctx, launch{names: names, flags: []string{"--idle", "1s"}})
	if err != nil {
		return err
	}
	defer e.stop()
	clients, err := oneEach(ctx, e, names)
	if err != nil {
		return err
	}
	if err := asleep(ctx, e); err != nil {
		return err
	}
	deep, err := wakeAll(ctx, e, names[:wakeBoxes], clients, true)
	if err != nil {
		return err
	}
	m.phases(deep)
	light, err := wakeAll(ctx, e, names[wakeBoxes:], clients, false)
	if err != nil {
		return err
	}
	var took []time.Duration
	for _, w := range light[1:] { // the first wakes the functions
		took = append(took, w.took)
	}
	m.add("box asleep p50", "ms", quantile(took, 0.5))
	m.add("box asleep p95", "ms", quantile(took, 0.95))
	return nil
}

// oneEach opens a session of each server and makes one call in it.
func oneEach(ctx context.Context, e *endpoint, names []string) (map[string]client, error) {
	clients := map[string]client{}
	first := e.address
	for _, name := range names {
		at := *e
		at.address = strings.Replace(first, "/"+serverIn(first)+"/", "/"+name+"/", 1)
		c := at.client()
		if _, err := timed(ctx, c.open); err != nil {
			return nil, err
		}
		if _, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err != nil {
			return nil, err
		}
		clients[name] = c
	}
	return clients, nil
}

// serverIn takes the name out of http://HOST/NAME/mcp.
func serverIn(address string) string {
	parts := strings.Split(address, "/")
	return parts[len(parts)-2]
}

// asleep waits until dormouse run has no processes below it.
func asleep(ctx context.Context, e *endpoint) error {
	return awaitProcesses(ctx, e, 45*time.Second, func(m member) bool { return m.command != "dormouse" })
}

// awaitProcesses waits until there are no more processes for which inTheWay returns true.
func awaitProcesses(ctx context.Context, e *endpoint, limit time.Duration, inTheWay func(member) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		all, err := below(e.pid())
		if err != nil {
			return err
		}
		left := 0
		for _, m := range all {
			if m.pid != e.pid() && inTheWay(m) {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d processes are still there: %w", left, ctx.Err())
		}
	}
}

// woken is one wake: when the call was sent, and the times until its answer. A phase that
// did not happen has 0.
type woken struct {
	took                                  time.Duration
	function, box, connect, relay, answer time.Duration
}

// wakeAll makes one call in each session. With deep it waits before each call until the
// functions are asleep.
func wakeAll(ctx context.Context, e *endpoint, names []string, clients map[string]client, deep bool) ([]woken, error) {
	var all []woken
	for _, name := range names {
		if deep {
			functions := func(m member) bool { return m.command == "http" || m.command == "relay" || m.command == "sweep" }
			if err := awaitProcesses(ctx, e, 20*time.Second, functions); err != nil {
				return nil, err
			}
		}
		c := clients[name]
		began := time.Now()
		took, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) })
		if err != nil {
			return nil, err
		}
		w := woken{took: took}
		marks := []struct {
			kind, name string
			phase      *time.Duration
		}{
			{"function.ready", "http", &w.function},
			{"box.wake", name, &w.box},
			{"function.wake", "relay", &w.connect},
			{"function.ready", "relay", &w.relay},
		}
		last := began
		for _, mark := range marks {
			if at, ok := e.journal.first(began, mark.kind, mark.name); ok && at.After(last) {
				*mark.phase, last = at.Sub(last), at
			}
		}
		w.answer = began.Add(took).Sub(last)
		all = append(all, w)
	}
	return all, nil
}

// phases adds the phases of wakes with everything asleep.
func (m *measurement) phases(all []woken) {
	var took []time.Duration
	phases := []struct {
		name string
		of   func(woken) time.Duration
		all  []time.Duration
	}{
		{name: "until http is up", of: func(w woken) time.Duration { return w.function }},
		{name: "until the box is started", of: func(w woken) time.Duration { return w.box }},
		{name: "until it speaks to the relay", of: func(w woken) time.Duration { return w.connect }},
		{name: "until relay is up", of: func(w woken) time.Duration { return w.relay }},
		{name: "hello, server, call", of: func(w woken) time.Duration { return w.answer }},
	}
	for _, w := range all {
		took = append(took, w.took)
		for i := range phases {
			phases[i].all = append(phases[i].all, phases[i].of(w))
		}
	}
	m.add("first call p50", "ms", quantile(took, 0.5))
	m.add("first call p95", "ms", quantile(took, 0.95))
	for _, p := range phases {
		// Only programs of functions have the phases of functions.
		if slices.ContainsFunc(p.all, func(d time.Duration) bool { return d > 0 }) {
			m.add(p.name, "ms", quantile(p.all, 0.5))
		}
	}
}

// wakeOthers measures peers that do not sleep, or fall asleep by themselves: 20 sessions
// after 15 s.
func wakeOthers(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{})
	if err != nil {
		return err
	}
	defer e.stop()
	clients, _, err := open(ctx, e, 20, 4)
	if err != nil {
		return err
	}
	defer finishAll(ctx, clients)
	for _, c := range clients {
		if _, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err != nil {
			return err
		}
	}
	select {
	case <-time.After(m.scale(15 * time.Second)):
	case <-ctx.Done():
		return ctx.Err()
	}
	var took []time.Duration
	for _, c := range clients {
		d, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) })
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	m.add("first call p50", "ms", quantile(took, 0.5))
	m.add("first call p95", "ms", quantile(took, 0.95))
	return nil
}
