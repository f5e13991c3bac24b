package main

import (
	"context"
	"fmt"
	"time"
)

// sockets measures many WebSocket clients that are connected and silent: 10,000, or as
// many as can be opened in the given time.
func sockets(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{flags: []string{"--idle", "1s"}})
	if err != nil {
		return err
	}
	defer e.stop()
	probe, _, err := open(ctx, e, 1, 1) // it fills the handshake record
	if err != nil {
		return err
	}
	defer finishAll(ctx, probe)
	if err := hello(ctx, probe[0]); err != nil {
		return err
	}
	before, err := m.rest(ctx, e)
	if err != nil {
		return err
	}
	var clients []client
	defer func() {
		for _, c := range clients {
			c.drop()
		}
	}()
	var took []time.Duration
	began := time.Now()
	for ends := began.Add(m.scale(120 * time.Second)); len(clients) < 10_000 && time.Now().Before(ends); {
		pace := time.After(time.Second / 4) // API Gateway accepts 500 new connections a second, and so does its emulator
		opened, times, err := open(ctx, e, 100, 8)
		clients, took = append(clients, opened...), append(took, times...)
		if err != nil {
			return fmt.Errorf("after %d clients: %w", len(clients), err)
		}
		<-pace
	}
	lasted := time.Since(began)
	rested, err := m.rest(ctx, e)
	if err != nil {
		return err
	}
	n := float64(len(clients))
	m.add("clients", "", n)
	m.add("connect and initialize p50", "ms", quantile(took, 0.5))
	m.add("a second", "/s", n/lasted.Seconds())
	m.add("processes, all silent", "", float64(rested.Processes))
	m.add("RSS a client", "KB", float64(rested.RSS-before.RSS)/1e3/n)
	woken, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, clients[len(clients)/2]) })
	if err != nil {
		return err
	}
	m.add("first call of one of them", "ms", ms(woken))
	return nil
}
