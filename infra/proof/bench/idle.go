package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// idle measures the cost of sessions that are not used: processes and memory with none,
// 100 and 1,000 of them, each after one call and a rest.
func idle(ctx context.Context, m *measurement) error {
	e, err := m.start(ctx, launch{
		flags: []string{"--idle", "1s"},
	})
	if err != nil {
		return err
	}
	defer e.stop()
	var clients []*httpClient
	defer func() {
		for _, c := range clients {
			c.drop()
		}
	}()
	ends := time.Now().Add(m.scale(90 * time.Second))
	var before usage
	for _, want := range []int{0, 100, 1000} {
		complete, err := m.grow(ctx, e, &clients, want, ends)
		if err != nil {
			return err
		}
		if !complete {
			m.say("only %d of %d sessions in the time there is", len(clients), want)
			m.notes = append(m.notes, fmt.Sprintf("%s: %d of %d sessions in the time there was", m.peer.name, len(clients), want))
			break
		}
		rested, err := m.rest(ctx, e)
		if err != nil {
			return err
		}
		at := fmt.Sprintf(" at %d", want)
		m.add("processes"+at, "", float64(rested.Processes))
		m.add("RSS"+at, "MB", float64(rested.RSS)/1e6)
		m.add("PSS"+at, "MB", float64(rested.PSS)/1e6)
		if want == 100 {
			m.add("PSS a session", "MB", float64(rested.PSS-before.PSS)/1e6/float64(want))
		}
		before = rested
	}
	return nil
}

// grow opens sessions with one call each until there are as many as wanted. enough is false if the time
// ended first.
func (m *measurement) grow(ctx context.Context, e *endpoint, clients *[]*httpClient, want int, ends time.Time) (enough bool, err error) {
	for len(*clients) < want {
		if time.Now().After(ends) {
			return false, nil
		}
		opened, err := open(ctx, e, min(20, want-len(*clients)), 4)
		*clients = append(*clients, opened...)
		if err != nil {
			return false, err
		}
		for _, c := range opened {
			if _, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// rest waits until the host ends no more processes: until their number has not changed for 8 s, but
// at most 20 s. With the flags of the benchmark, Dormouse ends an idle process after 7 s.
func (m *measurement) rest(ctx context.Context, e *endpoint) (usage, error) {
	last, since := -1, time.Now()
	for ends := time.Now().Add(20 * time.Second); time.Now().Before(ends); {
		all, err := below(e.pid())
		if err != nil {
			return usage{}, err
		}
		if len(all) != last {
			last, since = len(all), time.Now()
		}
		if time.Since(since) > 8*time.Second {
			break
		}
		if err := storage.Rest(ctx, 200*time.Millisecond); err != nil {
			return usage{}, err
		}
	}
	return treeUsage(e.pid())
}

// stored returns how many bytes the host has on disk.
func (m *measurement) stored(e *endpoint) (sum int64) {
	_ = filepath.WalkDir(e.data, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // a file that vanishes meanwhile is not counted
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
