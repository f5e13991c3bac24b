package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// scale measures Dormouse with more and more of one thing: servers, sessions, events of one
// session, held streams or WebSockets, at each power of ten. A row of its table is one thing at one
// size.
func scale(ctx context.Context, m *measurement) error {
	for _, kind := range []struct {
		name string
		most int
		at   func(context.Context, *measurement, int) error
	}{
		{"servers", 1_000, atServers},
		{"sessions", 100_000, atSessions},
		{"events of one session", 100_000, atEvents},
		{"held streams", 10_000, atStreams},
		{"WebSockets", 10_000, atSockets},
	} {
		for n := 10; n <= kind.most; n *= 10 {
			row := *m
			row.peer.name = grouped(n) + " " + kind.name
			row.say("begins")
			if err := kind.at(ctx, &row, n); err != nil {
				row.say("failed: %v", err)
				m.notes = append(m.notes, fmt.Sprintf("%s: %v", row.peer.name, err))
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}

// grouped writes a number with commas.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// shows adds the metrics that all rows have: the time of a call, the memory of Dormouse without its
// servers, its files, and the time of two commands.
func (m *measurement) shows(ctx context.Context, e *endpoint, c *httpClient) error {
	if _, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err != nil { // this call starts the server's process
		return err
	}
	l, err := press(ctx, e, []*httpClient{c}, m.scale(time.Second), hello)
	if err != nil {
		return err
	}
	if len(l.took) == 0 {
		return fmt.Errorf("no call was answered: %w", l.first)
	}
	m.add("call p50", "ms", quantile(l.took, 0.5))
	u, err := treeUsage(e.pid())
	if err != nil {
		return err
	}
	m.add("RSS of Dormouse", "MB", float64(u.Host)/1e6)
	m.add("files", "MB", float64(m.stored(e))/1e6)
	for _, command := range [][]string{{"ps"}, {"sessions", "list"}} {
		began := time.Now()
		if _, err := m.dormouse(ctx, e, command...); err != nil {
			return err
		}
		m.add("dormouse "+command[0], "ms", ms(time.Since(began)))
	}
	return nil
}

// dormouse runs a command of dormouse on the data folder of an endpoint, and returns its output.
func (m *measurement) dormouse(ctx context.Context, e *endpoint, arguments ...string) (string, error) {
	var problem bytes.Buffer
	cmd := exec.CommandContext(ctx, m.place.bin("dormouse"), append(arguments, "--data", e.data)...)
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("dormouse %s: %w: %s", arguments[0], err, &problem)
	}
	return string(bytes.TrimSpace(out)), err
}

func atServers(ctx context.Context, m *measurement, n int) error {
	names := make([]string, n)
	for i := range names {
		names[i] = "echo" + strconv.Itoa(i)
	}
	began := time.Now()
	e, err := m.start(ctx, launch{names: append(names, "echo")})
	if err != nil {
		return err
	}
	defer e.stop()
	m.add("made in", "s", time.Since(began).Seconds())
	clients, err := open(ctx, e, 1, 1)
	if err != nil {
		return err
	}
	return m.shows(ctx, e, clients[0])
}

func atSessions(ctx context.Context, m *measurement, n int) error {
	return m.seeded(ctx, func(store storage.Store, _ *httpClient) error {
		all, ctx := errgroup.WithContext(ctx)
		all.SetLimit(8)
		for range n {
			all.Go(func() error { return store.Create(ctx, someSession()) })
		}
		return all.Wait()
	})
}

func atEvents(ctx context.Context, m *measurement, n int) error {
	return m.seeded(ctx, func(store storage.Store, c *httpClient) error {
		for ; n > 0; n -= pastBatch {
			if err := store.Append(ctx, someEvents(c.session, min(n, pastBatch))); err != nil {
				return err
			}
		}
		return nil
	})
}

// seeded starts dormouse, opens a session, lets the function fill write into dormouse's store, and
// measures.
func (m *measurement) seeded(ctx context.Context, fill func(storage.Store, *httpClient) error) error {
	e, err := m.start(ctx, launch{})
	if err != nil {
		return err
	}
	defer e.stop()
	c := newHTTPClient(e.address, true)
	if _, err := timed(ctx, c.open); err != nil {
		return err
	}
	store, err := sqlitestore.Open(filepath.Join(e.data, local.StoreFile))
	if err != nil {
		return err
	}
	began := time.Now()
	if err := errors.Join(fill(store, c), store.Close()); err != nil {
		return err
	}
	m.add("made in", "s", time.Since(began).Seconds())
	return m.shows(ctx, e, c)
}

// perKey is how many connections each key holds. dormouse allows a key 1,024 at a time.
const perKey = 1_000

// held starts dormouse with API keys, opens n connections with the function hold, perKey for each
// key, and measures while they are open.
func (m *measurement) held(ctx context.Context, n int, hold func(ctx context.Context, e *endpoint, key string) (io.Closer, error)) error {
	e, err := m.start(ctx, launch{
		flags: []string{"--access", "keys"},
		// Otherwise dormouse looks up the program of each client in /proc. It does so only for clients
		// on its own machine, which would distort the measurement.
		file: map[string]any{"access": map[string]any{"boxes": true}},
	})
	if err != nil {
		return err
	}
	defer e.stop()
	probe, err := m.tenant(ctx, e, "probe")
	if err != nil {
		return err
	}
	var open []io.Closer
	defer func() {
		for _, c := range open {
			_ = c.Close() // the measurement is over
		}
	}()
	began := time.Now()
	for len(open) < n {
		name := "holder" + strconv.Itoa(len(open)/perKey)
		key, err := m.key(ctx, e, name)
		if err != nil {
			return err
		}
		for range min(perKey, n-len(open)) {
			c, err := hold(ctx, e, key)
			for tries := 0; err != nil && tries < 20; tries++ { // a key may connect 500 times at once, and then 50 times a second
				time.Sleep(time.Second / 10)
				c, err = hold(ctx, e, key)
			}
			if err != nil {
				return fmt.Errorf("after %d: %w", len(open), err)
			}
			open = append(open, c)
		}
	}
	m.add("made in", "s", time.Since(began).Seconds())
	return m.shows(ctx, e, probe)
}

func atStreams(ctx context.Context, m *measurement, n int) error {
	shared := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	return m.held(ctx, n, func(ctx context.Context, e *endpoint, key string) (io.Closer, error) {
		c := newHTTPClient(e.address, true)
		c.key, c.http = key, shared
		if _, err := timed(ctx, c.open); err != nil {
			return nil, err
		}
		res, err := c.do(ctx, http.MethodGet, c.address, http.Header{"Accept": {"text/event-stream"}}, nil)
		if err != nil {
			return nil, err
		}
		return res.Body, nil
	})
}

func atSockets(ctx context.Context, m *measurement, n int) error {
	return m.held(ctx, n, func(ctx context.Context, e *endpoint, key string) (io.Closer, error) {
		var conn *websocket.Conn
		_, err := timed(ctx, func(ctx context.Context) (err error) {
			conn, err = openSocket(ctx, e.socket, key)
			return err
		})
		return closer(func() error { return conn.CloseNow() }), err
	})
}

type closer func() error

func (c closer) Close() error { return c() }

// tenant makes an API key of a new tenant, and a client that has made its first call with the key.
func (m *measurement) tenant(ctx context.Context, e *endpoint, name string) (*httpClient, error) {
	key, err := m.key(ctx, e, name)
	if err != nil {
		return nil, err
	}
	c := newHTTPClient(e.address, true)
	c.key = key
	if _, err := timed(ctx, c.open); err != nil {
		return nil, err
	}
	_, err = timed(ctx, func(ctx context.Context) error { return hello(ctx, c) })
	return c, err
}

// key makes an API key of a new tenant.
func (m *measurement) key(ctx context.Context, e *endpoint, tenant string) (string, error) {
	return m.dormouse(ctx, e, "keys", "create", tenant, "--tenant", tenant, "--server", "echo", "--servers", filepath.Join(e.data, "servers.json"))
}

// pastBatch is how many events each stream of a filled session has.
const pastBatch = 250

// someEvents returns a stream of n log messages, as a part of a session's past.
func someEvents(session string, n int) storage.Batch {
	line := []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + strings.Repeat("x", 60) + `"}}`)
	return storage.Batch{
		Session: storage.ID(session), Stream: storage.NewStreamID(), First: 1, Gen: 1, Seq: 1, Final: true,
		Events: slices.Repeat([][]byte{line}, n), Expires: time.Now().Add(time.Hour),
	}
}

// someSession returns a session that nobody uses.
func someSession() storage.Session {
	now := time.Now()
	return storage.Session{
		ID: storage.NewID(), Server: "echo", Digest: "bench", Tenant: "local", Principal: "local",
		Transport: storage.HTTP, State: storage.Ready, Version: protocol, Created: now, Used: now,
		Init:    []byte(`{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`),
		Expires: now.Add(time.Hour),
	}
}
