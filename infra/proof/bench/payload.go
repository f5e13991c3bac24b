package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// payload measures single calls with messages of 1 KB to 4 MB: first large answers, then
// large requests with answers of the same size.
func payload(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{})
	if err != nil {
		return err
	}
	defer e.stop()
	clients, _, err := open(ctx, e, 1, 1)
	if err != nil {
		return err
	}
	c := clients[0]
	defer finishAll(ctx, clients)
	if _, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err != nil {
		return err
	}
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 4 << 20} {
		text := strings.Repeat("x", size)
		m.sized(ctx, e, c, "answer of "+bytesName(size), func(ctx context.Context, c client) error {
			result, err := c.call(ctx, "fill", map[string]int{"bytes": size})
			if err != nil {
				return err
			}
			return checkText(result, text)
		})
	}
	for _, size := range []int{64 << 10, 1 << 20} {
		text := strings.Repeat("y", size)
		m.sized(ctx, e, c, bytesName(size)+" both ways", func(ctx context.Context, c client) error { return echo(ctx, c, text) })
	}
	return nil
}

// sized adds p50 and CPU time of a call, or the reason why there is no figure.
func (m *measurement) sized(ctx context.Context, e *endpoint, c client, what string, call func(context.Context, client) error) {
	l, err := press(ctx, e, []client{c}, m.scale(time.Second), call)
	if err == nil && len(l.took) == 0 {
		err = l.first
	}
	if err != nil {
		m.say("%s: %.200v", what, err)
		m.notes = append(m.notes, fmt.Sprintf("%s, %s: %.200v", m.peer.name, what, err))
		return
	}
	m.add(what+", p50", "ms", quantile(l.took, 0.5))
	m.add(what+", CPU", "ms", l.perCall())
}

func bytesName(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
