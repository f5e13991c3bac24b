package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// load is the result of some clients that make calls for some time.
type load struct {
	took   []time.Duration // of each call that was answered rightly
	failed int
	first  error // of the failures
	lasted time.Duration
	cpu    time.Duration // of the tree of the peer
	// programs has the CPU time by program, of the processes that lived during the whole
	// load.
	programs map[string]time.Duration
}

func (l load) perSecond() float64 { return float64(len(l.took)) / l.lasted.Seconds() }

// perCall returns the CPU time of a call in milliseconds.
func (l load) perCall() float64 { return ms(l.cpu) / float64(max(1, len(l.took))) }

// press makes every client call, one call after another, until the time is over.
func press(ctx context.Context, e *endpoint, clients []client, lasts time.Duration, call func(context.Context, client) error) (load, error) {
	before, err := e.cpu()
	if err != nil {
		return load{}, err
	}
	programs, err := treePrograms(e.pid())
	if err != nil {
		return load{}, err
	}
	began := time.Now()
	ends := began.Add(lasts)
	parts := make([]load, len(clients))
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for time.Now().Before(ends) && ctx.Err() == nil {
				parts[i].note(timed(ctx, func(ctx context.Context) error { return call(ctx, c) }))
			}
		})
	}
	wg.Wait()
	all := load{lasted: time.Since(began)}
	after, err := e.cpu()
	if err != nil {
		return load{}, err
	}
	all.cpu = after - before
	if all.programs, err = treePrograms(e.pid()); err != nil {
		return load{}, err
	}
	for name := range all.programs {
		all.programs[name] -= programs[name]
	}
	for _, p := range parts {
		all.took = append(all.took, p.took...)
		all.failed += p.failed
		if all.first == nil {
			all.first = p.first
		}
	}
	return all, nil
}

func (l *load) note(took time.Duration, err error) {
	if err == nil {
		l.took = append(l.took, took)
		return
	}
	l.failed++
	if l.first == nil {
		l.first = err
	}
}

func timed(ctx context.Context, do func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	began := time.Now()
	err := do(ctx)
	return time.Since(began), err
}

// open opens n clients, atOnce at a time, and returns how long each took. If one fails,
// open returns the others with the first error.
func open(ctx context.Context, e *endpoint, n, atOnce int) ([]client, []time.Duration, error) {
	clients, took := make([]client, n), make([]time.Duration, n)
	var first error
	var mu sync.Mutex
	var wg sync.WaitGroup
	gate := make(chan struct{}, atOnce)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			c := e.client()
			d, err := timed(ctx, c.open)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if first == nil {
					first = fmt.Errorf("open client %d: %w", i, err)
				}
				return
			}
			clients[i], took[i] = c, d
		})
	}
	wg.Wait()
	var opened []client
	var times []time.Duration
	for i, c := range clients {
		if c != nil {
			opened, times = append(opened, c), append(times, took[i])
		}
	}
	return opened, times, first
}

// finishAll ends sessions as a client does, and ignores errors.
func finishAll(ctx context.Context, clients []client) {
	gate := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for _, c := range clients {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_ = c.close(ctx) // it is over either way
		})
	}
	wg.Wait()
}
