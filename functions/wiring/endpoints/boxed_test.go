package endpoints_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// boxes are the boxes of a site: runners in this process, whose frames and environments
// are kept as text. A new relay function serves each of their frames.
type boxes struct {
	s    *site
	seen commontest.Lines

	mu   sync.Mutex
	live map[string]*boxed // by connection
}

// Run implements fleet.Fleet.
func (b *boxes) Run(ctx context.Context, t fleet.Task) (string, error) {
	gen, err := strconv.ParseInt(t.Env[frame.EnvGeneration], 10, 64)
	if err != nil {
		return "", err
	}
	env, err := json.Marshal(t)
	if err != nil {
		return "", err
	}
	b.note(env)
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	box := &boxed{boxes: b, task: "task-" + t.ClientToken, in: make(chan []byte, 100), ctx: ctx}
	box.runner = runner.New(runner.Config{
		Box: storage.BoxID(t.Box), Gen: storage.Generation(gen), Token: t.Env[frame.EnvToken], Task: box.task, Executor: box, Flush: time.Millisecond,
		Dial: func(context.Context, string, http.Header) (runner.Conn, error) { return box, nil },
	})
	b.mu.Lock()
	b.live[box.task] = box
	b.mu.Unlock()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = box.runner.Run(ctx) // it ends with the test
	}()
	b.s.t.Cleanup(func() { end(); <-over })
	return box.task, nil
}

func (b *boxes) note(data []byte) { _, _ = b.seen.Write(append(bytes.Clone(data), '\n')) }

// Stop implements fleet.Fleet.
func (*boxes) Stop(context.Context, string, string) error { return nil }

// Tasks implements fleet.Fleet.
func (b *boxes) Tasks(context.Context) (running []fleet.Status, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.live {
		running = append(running, fleet.Status{ID: id, State: fleet.Running})
	}
	return running, nil
}

// Traits implements fleet.Fleet.
func (*boxes) Traits(string) fleet.Traits { return fleet.Traits{Lists: true} }

// Post implements storage.Poster.
func (b *boxes) Post(_ context.Context, conn string, data []byte) error {
	b.mu.Lock()
	box := b.live[conn]
	b.mu.Unlock()
	if box == nil {
		return storage.Errorf(storage.Closed, "gone")
	}
	b.note(data)
	box.in <- data
	return nil
}

// boxed is one box: its connection, and a program that answers every request.
type boxed struct {
	*boxes
	task   string
	runner *runner.Runner
	in     chan []byte
	ctx    context.Context
}

// Send implements runner.Conn.
func (b *boxed) Send(data []byte) error {
	b.note(data)
	go func() {
		reply, err := relayserver.NewHandler(b.s.function().Relay).Frame(context.WithoutCancel(b.ctx), b.task, data)
		if err != nil && b.ctx.Err() == nil {
			b.s.t.Error(err)
		}
		if reply != nil {
			b.note(reply)
			b.in <- reply
		}
	}()
	return nil
}

// Receive implements runner.Conn.
func (b *boxed) Receive() ([]byte, error) {
	select {
	case data := <-b.in:
		return data, nil
	case <-b.ctx.Done():
		return nil, io.EOF
	}
}

func (*boxed) Close(string) error { return nil }

// Deliver implements runner.Executor.
func (b *boxed) Deliver(d runner.Delivery) {
	m, err := wire.Parse(d.Raw)
	if err != nil || m.Kind != wire.Request {
		return
	}
	result := json.RawMessage(`{"content":[{"type":"text","text":"done"}],"tools":[]}`)
	if m.Method == wire.MethodInitialize {
		result = json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"boxed","version":"1"}}`)
	}
	go b.runner.Event(runner.Event{Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Raw: wire.ResultResponse(m.ID, result), Final: true})
}

func (*boxed) Answer(storage.ID, string, []byte)              {}
func (*boxed) CloseStream(storage.ID, storage.StreamID)       {}
func (*boxed) StopSession(storage.ID)                         {}
func (*boxed) Halt(storage.ID, string, time.Duration)         {}
func (*boxed) Questions() (questions map[storage.ID][]string) { return nil }
func (*boxed) IdleSince() (since time.Time, ok bool)          { return time.Time{}, false }

// A token is in nothing that a box gets, neither in frames nor in its
// environment. It is not in the log, and in no file of the store.
func TestTokenIsInNoFrameOfABox(t *testing.T) {
	for _, access := range []string{"oauth", "idp"} {
		t.Run(access, func(t *testing.T) {
			s := newSite(t)
			s.signIn = access == "oauth"
			s.boxes = &boxes{s: s, live: map[string]*boxed{}}
			token := s.token("ada", "boxed")
			if s.signIn {
				_, token, _ = s.brokered("/boxed/mcp", "")
			}
			a := s.do("POST", "/boxed/mcp", call("work"), s.as(token, s.begin("boxed", token))...)
			if a.status != http.StatusOK || !strings.Contains(a.body, "done") {
				t.Fatalf("%+v", a)
			}
			seen := s.boxes.seen.String()
			if !strings.Contains(seen, "tools/call") || !strings.Contains(seen, "DORMOUSE_") {
				t.Fatalf("the frames of the call were not seen: %s", seen)
			}
			for where, text := range map[string]string{"a frame": seen, "the log": s.log.String(), "the store": s.files()} {
				for _, part := range []string{token[:40], token[len(token)-40:]} {
					if strings.Contains(text, part) {
						t.Errorf("the token is in %s", where)
					}
				}
			}
		})
	}
}

// files returns the contents of the store's files.
func (s *site) files() string {
	s.t.Helper()
	var all strings.Builder
	found, err := filepath.Glob(s.file + "*")
	if err != nil || s.file != "" && len(found) == 0 {
		s.t.Fatal(found, err)
	}
	for _, name := range found {
		data, err := os.ReadFile(name)
		commontest.OK(s.t, err)
		all.Write(data)
	}
	return all.String()
}
