package main

import (
	"context"
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
	l, err := press(ctx, e, make([]*httpClient, 16), m.scale(5*time.Second), func(ctx context.Context, _ *httpClient) error {
		return oneCall(ctx, e.client())
	})
	if err != nil {
		return err
	}
	m.add("sessions", "/s", l.perSecond())
	m.add("p50 of a session", "ms", quantile(l.took, 0.5))
	m.add("p95 of a session", "ms", quantile(l.took, 0.95))
	m.add("CPU a session", "ms", l.perCall())
	if l.failed > 0 {
		m.say("%d sessions failed; the first: %v", l.failed, l.first)
	}
	return nil
}

// oneCall opens a session, makes one call and closes the session.
func oneCall(ctx context.Context, c *httpClient) error {
	if err := c.open(ctx); err != nil {
		return err
	}
	if err := hello(ctx, c); err != nil {
		return err
	}
	return c.close(ctx)
}
