package local

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// startFleet opens the fleet, which runs boxes as child processes or as goroutines of this
// program.
func (m *machine) startFleet(context.Context) error {
	if err := boxes.BecomeSubreaper(); err != nil {
		return err
	}
	proc.Reap()
	if needsBoxes(m.servers.Load()) {
		if _, err := provision.CacheFolder(m.environ.get(cacheEnv), m.folder.Path); err != nil {
			return err
		}
	}
	// Errors for clients may quote the processes' logs if only this machine's user can call.
	env, err := withHome(m.environ.boxes(m.folder.File(LogFolder), m.public.private()), m.folder.File("home"))
	if err != nil {
		return err
	}
	m.memory = guard.NewMemory(m.cfg.memory)
	m.boxes = boxes.NewPool(boxes.Config{
		Command: m.cfg.Runner[0], Args: m.cfg.Runner[1:], Dir: m.folder.Path, MaxTasks: -1, Grace: boxStopGrace,
		Env: env,
		Prepare: func(ctx context.Context, t fleet.Task) (fleet.Task, error) {
			if err := m.room(ctx, t); err != nil {
				return t, err
			}
			return m.commands.filled(ctx, m.servers.Load(), current(m.servers.Load(), m.cfg.Idle, t))
		},
		Inside: m.insider(), Started: proc.Started,
		OnStart: m.boxStarted, OnStop: m.boxStopped,
		Output: func(t fleet.Status, line string) {
			tenant, server := storage.BoxID(t.Box).Parts()
			m.lines.Box(tenant, server, line)
			_, _ = fmt.Fprintln(m.cfg.Log, line) // it is JSON from slog already
		},
		Logger: m.log,
	})
	m.closers = append(m.closers, m.boxes.Close)
	return nil
}

// isInside reports whether the boxes of a server run in this program.
func (m *machine) isInside(server string) bool {
	s, ok := m.servers.Load().Server(server)
	return ok && !m.cfg.Apart && !m.file.others && !s.Box.Confined()
}

// heldByBoxes limits how many bytes of servers' output all boxes in this program together hold in
// memory.
const heldByBoxes = 64 << 20

// insider returns Inside of [boxes.Config], which runs boxes in this program.
func (m *machine) insider() func(context.Context, <-chan struct{}, map[string]string, func(string)) (exit int) {
	budget := guard.NewBudget(heldByBoxes)
	return func(ctx context.Context, kill <-chan struct{}, env map[string]string, line func(string)) int {
		log := slog.New(slog.NewJSONHandler(lineWriter(line), nil))
		err := runner.Inside(ctx, kill, env, budget, m.memory, m.inside.Join, log)
		m.inside.Left(env)
		if err != nil {
			log.Error("the box ended", "code", storage.CodeOf(err), "error", err)
		}
		return runner.ExitCode(err)
	}
}

// lineWriter gets the lines of a slog handler, which calls Write once for each line.
type lineWriter func(string)

func (w lineWriter) Write(line []byte) (int, error) {
	w(strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

// needsBoxes reports whether an enabled server of the file is a program that dormouse must start.
func needsBoxes(servers *serversfile.File) bool {
	return slices.ContainsFunc(servers.Names(), func(name string) bool {
		s, _ := servers.Server(name)
		return !s.Disabled && !s.InPlace()
	})
}

// LogFolder is the folder in the data folder with the stderr output of servers' processes.
// The files are SERVER/NAME.NANOSECONDS.log, and .log.old for older output; see proc.LogName.
const LogFolder = "logs"

// boxStopGrace is how long a box has to end its calls and processes, and to save its workspaces,
// when dormouse run stops. The rest of stopTime is for m.functions.
const boxStopGrace = 18 * time.Second

// room waits for memory for a box that is a process. If none becomes free, it records an event for
// the operator and returns [fleet.ErrCapacity]. For a box in this program it returns nil: such a
// box asks for memory when it starts a server's process.
func (m *machine) room(ctx context.Context, t fleet.Task) error {
	if t.Place == boxes.Inside {
		return nil
	}
	err := m.memory.Room(ctx)
	if err == nil {
		return nil
	}
	tenant, _ := storage.BoxID(t.Box).Parts()
	m.recorder.Record(journal.Event{Kind: journal.ServerFailed, Name: t.Server, Tenant: tenant, Phase: string(box.PhaseSessionCreate), Reason: err.Error()})
	return fmt.Errorf("%w: %w", fleet.ErrCapacity, err)
}

// makeRoom begins to free memory in the background, when a box lacks memory for another process of
// its server.
func (in *inprocess) makeRoom() {
	in.work.Go(func() {
		ctx, cancel := context.WithTimeout(in.ctx, yieldWithin)
		defer cancel()
		if err := in.m.memory.Room(ctx); err != nil {
			in.m.log.Warn("no room for another process of a box", "error", err)
		}
	})
}

// yieldWithin limits how long it may take to free memory for a process.
const yieldWithin = 10 * time.Second

// neighbour is a box that is a process, which [guard.Memory] may ask to end idle processes.
type neighbour struct {
	m     *machine
	box   storage.BoxID
	task  string
	heard atomic.Int64 // Unix nanoseconds of the last message of the box, or of the last request to free memory
	ended chan struct{}
	leave func() // removes the box from machine.memory
}

// Idlest implements [guard.Sleeper]. The box counts as idle since its last message.
func (n *neighbour) Idlest() (since time.Time, stop func() <-chan struct{}, ok bool) {
	return time.Unix(0, n.heard.Load()), func() <-chan struct{} {
		n.heard.Store(time.Now().UnixNano()) // so that the box is not asked again at once
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.m.yield(n.box)
			select {
			case <-n.ended:
			case <-time.After(time.Second): // the box may have ended only some of its processes
			}
		}()
		return done
	}, true
}

// arrived registers a box with machine.memory, which may ask it to free memory. The box is a process.
func (m *machine) arrived(t fleet.Status) {
	n := &neighbour{m: m, box: storage.BoxID(t.Box), task: t.ID, ended: make(chan struct{})}
	n.heard.Store(time.Now().UnixNano())
	n.leave = m.memory.Join(n)
	if before, ok := m.neighbours.Swap(n.box, n); ok {
		before.(*neighbour).leave() //nolint:forcetypeassert // the method arrived stores only this type
	}
}

// left removes a box from machine.memory. It is called when the box's process has ended.
func (m *machine) left(t fleet.Status) {
	v, _ := m.neighbours.Load(storage.BoxID(t.Box))
	if n, ok := v.(*neighbour); ok && n.task == t.ID {
		m.neighbours.Delete(n.box)
		n.leave()
		close(n.ended)
	}
}

// hear records the time of a message from a box that is a process.
func (m *machine) hear(e *observe.Event) {
	if e.Kind != observe.Frame || e.Server == "" { // no message, or one of an unknown box
		return
	}
	v, _ := m.neighbours.Load(e.Box)
	if n, ok := v.(*neighbour); ok {
		n.heard.Store(time.Now().UnixNano())
	}
}

// yield asks a box that is a process to end the server process that has been idle longest; see
// [frame.Yield].
func (m *machine) yield(id storage.BoxID) {
	ctx, cancel := context.WithTimeout(context.Background(), yieldWithin)
	defer cancel()
	b, err := m.functions.Records().Box(ctx, id)
	if err == nil && b.State == storage.Awake {
		err = m.relay.Post(ctx, b.Conn, frame.Encode(frame.Yield{}))
	}
	if err != nil {
		m.log.Warn("a box was not asked to yield its memory", "box", id, "error", err)
	}
}

func (m *machine) boxStarted(t fleet.Status) {
	tenant, _ := storage.BoxID(t.Box).Parts()
	if fleet.PlaceOf(t.ID) == fleet.Inside { // a box in this program has no connection; the bill counts the one that it would need on AWS
		m.ledger.Opened(relayserver.InsideConn(storage.BoxID(t.Box)))
	} else {
		m.arrived(t)
	}
	m.recorder.Record(journal.Event{Kind: journal.BoxWake, Name: t.Server, PID: t.PID, Detail: t.Box, Tenant: tenant})
}

// boxStopped records the end of a box. It calls [Functions].Sweep if the exit code is not 0, or if
// there are limits on spending, because Sweep counts the time of the box.
func (m *machine) boxStopped(t fleet.Status) {
	tenant, _ := storage.BoxID(t.Box).Parts()
	e := journal.Event{Kind: journal.BoxSleep, Name: t.Server, PID: t.PID, Tenant: tenant, Duration: t.Stopped.Sub(t.Started)}
	if t.ExitCode != 0 {
		e.Kind, e.Reason = journal.BoxCrash, strings.Join(strings.Fields(fmt.Sprintf("exit code %d %s %s", t.ExitCode, t.Signal, t.Reason)), " ")
	}
	m.recorder.Record(e)
	if t.ExitCode == 0 && !m.stopping.Load() {
		m.lines.Asleep(t.Server)
	}
	if fleet.PlaceOf(t.ID) == fleet.Inside {
		m.ledger.Closed(relayserver.InsideConn(storage.BoxID(t.Box)), t.Stopped.Sub(t.Started))
	}
	m.left(t)
	m.ledger.Stopped(t)
	if t.ExitCode != 0 || m.servers.Load().Limits() != nil {
		m.functions.Sweep(&t)
	}
}

// boxSize returns the size that a server's box would have on AWS.
func (m *machine) boxSize(server string) meter.BoxSize {
	return wiring.BoxSize(m.servers.Load(), server)
}
