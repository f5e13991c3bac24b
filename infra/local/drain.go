package local

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// drainWithin is how long calls in flight may take to end after [Config].Drain was closed. The
// stop that follows takes [stopTime] at most.
const drainWithin = 30 * time.Second

// drain waits until no call is in flight and all boxes are asleep, for drainWithin at most, or until
// ctx ends. It tells the boxes to end after their calls. Meanwhile the machine accepts no new
// connections; if a service manager holds the listening sockets, their clients wait for the next
// process. Open connections stay open, so that clients can answer questions of servers. In protocol
// version 2026-07-28, a call that waits for an answer of its client exists only in the store, and goes
// on in the next process.
func drain(ctx context.Context, m *machine) {
	if m.upkeep.storesNothing() {
		return // without a store, no call can end
	}
	m.stopping.Store(true)
	m.public.close()
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	calls, kept := m.public.use.calls()+len(m.lines.Open()), len(suspended(ctx, m))
	m.log.Info("the machine drains", "calls", calls, "suspended", kept)
	if d := m.cfg.Display; d != nil && calls+kept > 0 {
		d.Say(draining(calls, kept))
	}
	told := map[string]time.Time{} // when the boxes of tasks were told to end, by the ids of the tasks
	for (haltBoxes(ctx, m, told) || inFlight(ctx, m)) && storage.Rest(ctx, 100*time.Millisecond) == nil && !m.upkeep.storesNothing() {
	}
}

// awaitCalls waits until no call is in flight, but not beyond the deadline or the end of ctx. It is
// for calls of remote and native servers, which run in no box.
func awaitCalls(ctx context.Context, m *machine, deadline time.Time) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for inFlight(ctx, m) && !m.upkeep.storesNothing() && storage.Rest(ctx, 50*time.Millisecond) == nil {
	}
}

// inFlight reports whether a client waits for the response to a POST, or a call of a remote or native
// server goes on without a request, such as one over a WebSocket. It does not count calls that wait
// for an answer of their client, because they go on in the next process. A call of another server
// goes on only as long as its box.
func inFlight(ctx context.Context, m *machine) bool {
	if m.public.use.calls() > 0 {
		return true
	}
	open := m.inPlace(m.lines.Open())
	return open > 0 && open > m.inPlace(suspended(ctx, m))
}

// inPlace returns how many of these servers run in no box.
func (m *machine) inPlace(servers []string) (n int) {
	for _, name := range servers {
		if s, ok := m.servers.Load().Server(name); ok && s.InPlace() {
			n++
		}
	}
	return n
}

// draining returns the line for the user about a drain: which calls it waits for, and which calls
// the store keeps for the next start.
func draining(calls, kept int) string {
	var parts []string
	if calls > 0 {
		parts = append(parts, fmt.Sprintf("%s in flight, with up to %s to end; Ctrl-C or another SIGTERM does not wait", display.Count(calls, "call"), drainWithin))
	}
	if kept > 0 {
		parts = append(parts, display.Count(kept, "call")+" that asked the client, kept for the next start")
	}
	return strings.Join(parts, "; ")
}

// suspended returns the server of each call in the store that waits for an answer of its client. If
// the store fails, it returns what it has found so far.
func suspended(ctx context.Context, m *machine) (servers []string) {
	store := m.functions.Records()
	due, err := store.Due(ctx)
	if err != nil {
		return nil
	}
	for _, b := range due {
		items, err := store.Items(ctx, b)
		if err != nil {
			return servers
		}
		for _, it := range items {
			if it.State == storage.Suspended {
				_, server := b.Parts()
				servers = append(servers, server)
			}
		}
	}
	return servers
}

// tellAgain is the time after which a box is told again to end: a process that it started after it
// was told has not heard of it.
const tellAgain = time.Second

// haltBoxes tells each box that is awake to end its processes when they have nothing in flight. The
// argument told says when the boxes of tasks were told already. haltBoxes does not tell a box that
// still starts, because its first call is still to come. It reports whether a box is not yet asleep.
// The runner of one that is asleep stays connected for a while, which the stop cuts short.
func haltBoxes(ctx context.Context, m *machine, told map[string]time.Time) (run bool) {
	tasks, err := tasksOf(ctx, m)
	if err != nil {
		return false
	}
	halt := m.functions.Operators().Halt
	for _, t := range tasks {
		if t.State == fleet.Stopped {
			continue
		}
		b, err := m.functions.Records().Box(ctx, storage.BoxID(t.Box))
		if err == nil && b.State == storage.Asleep {
			continue
		}
		run = true
		if err != nil || b.State != storage.Awake || time.Since(told[t.ID]) < tellAgain {
			continue
		}
		_, alone := m.public.use.idleSince()
		if _, err := halt(ctx, b.ID, frame.Halt{By: "the end of dormouse run", In: drainWithin.Milliseconds(), Keep: true, Alone: alone}); err != nil {
			m.log.Warn("a box could not be told that the machine ends", "box", t.Box, "error", err)
			continue
		}
		told[t.ID] = time.Now()
	}
	return run
}
