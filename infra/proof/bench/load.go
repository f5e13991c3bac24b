package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// load is the result of some clients that make calls for some time.
type load struct {
	took   []time.Duration // durations of the calls with the right answer
	failed int
	first  error
	lasted time.Duration
	cpu    time.Duration // CPU time of all processes of the host
	// programs has the CPU time by program, of the processes that lived during the whole
	// load.
	programs map[string]time.Duration
}

func (l load) perSecond() float64 { return float64(len(l.took)) / l.lasted.Seconds() }

// perCall returns the CPU time of a call in milliseconds.
func (l load) perCall() float64 { return ms(l.cpu) / float64(max(1, len(l.took))) }

// press lets every client make calls, one after another, until the time is over.
func press(ctx context.Context, e *endpoint, clients []*httpClient, lasts time.Duration, call func(context.Context, *httpClient) error) (load, error) {
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

// open opens n clients, atOnce at a time. If one fails, open returns the others with the
// first error.
func open(ctx context.Context, e *endpoint, n, atOnce int) (opened []*httpClient, first error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	gate := make(chan struct{}, atOnce)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			c := e.client()
			_, err := timed(ctx, c.open)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				opened = append(opened, c)
			case first == nil:
				first = fmt.Errorf("open client %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	return opened, first
}

// finishAll ends sessions as a client does, and ignores errors.
func finishAll(ctx context.Context, clients []*httpClient) {
	gate := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for _, c := range clients {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_ = c.close(ctx) // an error does not matter: nobody uses the session again
		})
	}
	wg.Wait()
}
