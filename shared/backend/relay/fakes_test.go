package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// This file has the parts that several worlds of this package share.

// healthy is the part of a fleet that has nothing to do while no box is lost.
type healthy struct{}

func (healthy) Stop(context.Context, string, string) error    { return nil }
func (healthy) Tasks(context.Context) ([]fleet.Status, error) { return nil, nil }
func (healthy) Traits(string) fleet.Traits                    { return fleet.Traits{Lists: true} }

// unasked is the part of an Executor that has nothing to do while boxes get only messages.
type unasked struct{}

func (unasked) Answer(storage.ID, string, []byte)        {}
func (unasked) CloseStream(storage.ID, storage.StreamID) {}
func (unasked) Halt(storage.ID, string, time.Duration)   {}
func (unasked) StopSession(storage.ID)                   {}
func (unasked) Questions() map[storage.ID][]string       { return nil }

// inbound is the receiving half of a runner's connection.
type inbound struct {
	in     chan []byte
	closed chan struct{}
	once   sync.Once
}

func newInbound() *inbound { return &inbound{in: make(chan []byte, 1000), closed: make(chan struct{})} }

// Receive implements runner.Conn.
func (c *inbound) Receive() ([]byte, error) {
	select {
	case data := <-c.in:
		return data, nil
	case <-c.closed:
		return nil, io.EOF
	}
}

// Close implements runner.Conn.
func (c *inbound) Close(string) error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func newSealer(t testing.TB) *relayserver.Sealer {
	t.Helper()
	s, err := relayserver.NewSealer(bytes.Repeat([]byte("k"), 32))
	commontest.OK(t, err)
	return s
}

// hostOver returns the configuration of a host whose boxes get no settings.
func hostOver(t testing.TB, store storage.Store, posts storage.Poster, boxes fleet.Fleet) relayserver.Config {
	t.Helper()
	return relayserver.Config{
		Store: store, Sealer: newSealer(t), Poster: posts, Fleet: boxes,
		Launch: func(storage.Box) (map[string]string, error) { return map[string]string{}, nil },
	}
}

// runnerOf returns the configuration of the runner that a task starts.
func runnerOf(task fleet.Task, executor runner.Executor, dial runner.Dialer) (runner.Config, error) {
	gen, err := strconv.ParseInt(task.Env[frame.EnvGeneration], 10, 64)
	return runner.Config{
		Box: storage.BoxID(task.Box), Gen: storage.Generation(gen), Token: task.Env[frame.EnvToken], Pass: task.Env[frame.EnvPass], Task: "task",
		Executor: executor, Dial: dial,
	}, err
}

// caller is the client of most worlds, and handshake its server's answer to initialize.
var caller = sessions.Caller{
	Server: sessions.Server{Name: "s", Digest: "digest", Record: true}, Tenant: "t", Principal: "p", Transport: storage.HTTP,
}

const handshake = `{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}`

const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// onRecord stores the handshake record of a tenant's server.
func onRecord(t *testing.T, store storage.Store, tenant, result string) {
	t.Helper()
	commontest.OK(t, store.SaveHandshake(t.Context(), storage.Handshake{
		Digest: storage.RecordFor(tenant, "digest"), Version: wire.V20251125, Result: json.RawMessage(result),
	}))
}

// initialize opens a session.
func initialize(t *testing.T, h *sessions.Manager) storage.ID {
	t.Helper()
	s, call, err := h.Initialize(t.Context(), caller, "", parse(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`))
	commontest.OK(t, err)
	finish(t, call)
	return s.ID
}

// finish waits for the end of a call, if there is one, and of what follows from it. It
// returns the last event.
func finish(t *testing.T, call *sessions.Call) (last json.RawMessage) {
	t.Helper()
	for call != nil && !call.Done() {
		events, err := call.Next(t.Context(), time.Now().Add(time.Minute))
		commontest.OK(t, err)
		if len(events) > 0 {
			last = events[len(events)-1].Raw
		}
	}
	synctest.Wait()
	return last
}

func parse(t *testing.T, raw string) wire.Message {
	t.Helper()
	m, err := wire.Parse([]byte(raw))
	commontest.OK(t, err)
	return m
}
