package main

import (
	"context"
	"sync"
	"time"
)

// churn runs 16 clients. Each opens a session, makes one call and deletes the session, in
// a loop.
func churn(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{})
	if err != nil {
		return err
	}
	defer e.stop()
	if _, err := flat(ctx, e, m.scale(time.Second)); err != nil {
		return err
	}
	before, err := e.cpu()
	if err != nil {
		return err
	}
	const clients = 16
	parts := make([]load, clients)
	began := time.Now()
	ends := began.Add(m.scale(5 * time.Second))
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			for time.Now().Before(ends) && ctx.Err() == nil {
				parts[i].note(timed(ctx, func(ctx context.Context) error { return oneCall(ctx, e.client()) }))
			}
		})
	}
	wg.Wait()
	lasted := time.Since(began)
	after, err := e.cpu()
	if err != nil {
		return err
	}
	var all load
	for _, p := range parts {
		all.took = append(all.took, p.took...)
		all.failed += p.failed
		if all.first == nil {
			all.first = p.first
		}
	}
	m.add("sessions", "/s", float64(len(all.took))/lasted.Seconds())
	m.add("p50 of a session", "ms", quantile(all.took, 0.5))
	m.add("p95 of a session", "ms", quantile(all.took, 0.95))
	m.add("CPU a session", "ms", ms(after-before)/float64(max(1, len(all.took))))
	if all.failed > 0 {
		m.say("%d sessions failed; the first: %v", all.failed, all.first)
	}
	return nil
}

// oneCall opens a session, makes one call and closes the session.
func oneCall(ctx context.Context, c client) error {
	if err := c.open(ctx); err != nil {
		return err
	}
	if err := hello(ctx, c); err != nil {
		return err
	}
	return c.close(ctx)
}
