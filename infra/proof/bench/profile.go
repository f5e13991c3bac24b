package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/operate/pprofsock"
)

// profiles takes a CPU profile of every process of Dormouse while 16 clients make calls.
// It prints which functions take most time, and keeps the files.
func profiles(ctx context.Context, m *measurement) error {
	sockets, err := os.MkdirTemp("", "dm-prof-") // a short path, because a socket's path is limited to about 100 bytes
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(sockets) }() // if this fails, the files stay in the system's temporary folder
	e, err := m.start(ctx, launch{env: []string{pprofsock.Environment + "=" + sockets}})
	if err != nil {
		return err
	}
	defer e.stop()
	if err := warm(ctx, e, m.scale(2*time.Second)); err != nil {
		return err
	}
	clients, err := open(ctx, e, 16, 4)
	if err != nil {
		return err
	}
	defer finishAll(ctx, clients)
	for _, c := range clients {
		if err := hello(ctx, c); err != nil {
			return err
		}
	}
	folder := filepath.Join(m.options.out, "profiles", m.peer.name)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	taken := make(chan error, 1)
	lasts := m.scale(8 * time.Second)
	go func() { taken <- takeProfiles(ctx, sockets, folder, lasts*3/4) }()
	l, err := press(ctx, e, clients, lasts, hello)
	if err = errors.Join(err, <-taken); err != nil {
		return err
	}
	m.load(16, l)
	m.programs(l)
	return m.topLines(ctx, folder)
}

// takeProfiles takes a profile of each process that serves profiles, all at the same time.
func takeProfiles(ctx context.Context, sockets, folder string, lasts time.Duration) error {
	all, err := filepath.Glob(filepath.Join(sockets, "*.sock"))
	if err != nil || len(all) == 0 {
		return errors.Join(err, errors.New("no program offers profiles: is it built for AWS, or older than they are?"))
	}
	failed := make([]error, len(all))
	var wg sync.WaitGroup
	for i, socket := range all {
		wg.Go(func() {
			name := strings.TrimSuffix(filepath.Base(socket), ".sock")
			f, err := os.Create(filepath.Join(folder, name+".pprof"))
			if err == nil {
				err = errors.Join(pprofsock.Take(ctx, socket, lasts, f), f.Close())
			}
			if err != nil {
				failed[i] = fmt.Errorf("profile %s: %w", name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// topLines prints the functions in which Dormouse spends most time, by two measures: the time in the
// function itself, and the time with all that it calls.
func (m *measurement) topLines(ctx context.Context, folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.pprof"))
	if err != nil {
		return err
	}
	for _, order := range []string{"-flat", "-cum"} {
		args := append([]string{"tool", "pprof", "-top", "-nodecount=25", order, m.place.bin("dormouse")}, files...)
		out, err := exec.CommandContext(ctx, "go", args...).Output()
		if err != nil {
			return fmt.Errorf("go tool pprof: %w", err)
		}
		m.suite.say("\n== %d processes, %s\n%s", len(files), strings.TrimPrefix(order, "-"), out)
	}
	m.suite.say("the profiles are in %s", folder)
	return nil
}
