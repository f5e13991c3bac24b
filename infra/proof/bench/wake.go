package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// wake measures the first call after a rest in each of 20 sessions that have been used before. Dormouse
// hosts a server for each session, and rests until all boxes are asleep. Other programs rest for 15 s:
// they do not sleep, or fall asleep by themselves.
func wake(ctx context.Context, m *measurement) error {
	var l launch
	names := make([]string, 20)
	for i := range names {
		names[i] = fmt.Sprintf("echo%02d", i)
	}
	sleeps := strings.HasPrefix(m.peer.name, "dormouse")
	if sleeps {
		l = launch{names: names, flags: []string{"--idle", "1s"}}
	}
	e, err := m.start(ctx, l)
	if err != nil {
		return err
	}
	defer e.stop()
	var clients []*httpClient
	defer func() { finishAll(ctx, clients) }()
	for _, name := range names {
		c := e.client()
		if sleeps {
			c.address = strings.Replace(e.address, "/"+serverIn(e.address)+"/", "/"+name+"/", 1)
		}
		clients = append(clients, c)
		if _, err := timed(ctx, func(ctx context.Context) error { return errors.Join(c.open(ctx), hello(ctx, c)) }); err != nil {
			return err
		}
	}
	if sleeps {
		err = asleep(ctx, e)
	} else {
		err = storage.Rest(ctx, m.scale(15*time.Second))
	}
	if err != nil {
		return err
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

// serverIn takes the name out of http://HOST/NAME/mcp.
func serverIn(address string) string {
	parts := strings.Split(address, "/")
	return parts[len(parts)-2]
}

// asleep waits until Dormouse has ended all processes of servers.
func asleep(ctx context.Context, e *endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	for {
		all, err := below(e.pid())
		if err != nil {
			return err
		}
		left := slices.ContainsFunc(all, func(p member) bool { return p.pid != e.pid() && p.command != "dormouse" })
		if !left {
			return nil
		}
		if err := storage.Rest(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%d processes are still there: %w", len(all), err)
		}
	}
}
