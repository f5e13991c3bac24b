package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/infra/local/history"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// describe sets those parts of the API for operators that need more than the store.
func (m *machine) describe(o *api.Options) {
	o.Info.Place, o.Info.Access, o.Info.Guests = api.PlaceMachine, m.public.access(), m.cfg.HasGuests()
	o.Status = func(ctx context.Context) (api.Status, error) { return statusOf(ctx, m) }
	o.Output = keptOutput(m.folder.File(LogFolder))
	o.Calls, o.Series, o.People, o.Starts, o.Busy = m.history.Calls, m.history.Series, m.history.People, m.history.Starts, m.history.Busy
	o.Bodies = m.bodies.read
	o.Metrics = func(w io.Writer, may func(tenant, server string) bool) error { return metricsOf(m, w, may) }
	o.Changes, o.Hide, o.Idle = m.changes.wait, m.hider.hide, m.cfg.Idle
	o.Bill = func(ctx context.Context, since time.Time) (api.Bill, error) {
		b, err := m.ledger.Bill(ctx)
		return billOf(b, since), err
	}
	if halt := o.Halt; halt != nil {
		o.Halt = func(ctx context.Context, box storage.BoxID, h frame.Halt) (up bool, err error) {
			up, err = halt(ctx, box, h)
			if h.Keep {
				return up, err
			}
			forgot, failed := memory.Forget(snapshot.NewFolder(m.snapshots()), string(box), string(h.Session))
			return up || forgot, errors.Join(err, failed)
		}
	}
	o.Remembered = func() (boxes []storage.BoxID) {
		for _, s := range memory.Sleepers(snapshot.NewFolder(m.snapshots())) {
			boxes = append(boxes, storage.BoxID(s.Box))
		}
		return boxes
	}
	o.Edits, o.Vitals = m.cfg.Edits, func(ctx context.Context) (api.Vitals, error) { return vitalsOf(ctx, m) }
	o.Notes = func() []string {
		notes := m.file.notes()
		if left := m.leftToEngines(); left != "" {
			notes = append(notes, left)
		}
		return notes
	}
	o.Missing = m.missing
	o.Prepare = func(ctx context.Context, server string) (api.Prepared, error) { return m.prepare(ctx, server) }
	o.Reload = func() api.Reloaded {
		changes, err := m.reload()
		if err != nil {
			return api.Reloaded{Error: err.Error()}
		}
		return api.Reloaded{Changes: changes.String()}
	}
}

func statusOf(ctx context.Context, m *machine) (api.Status, error) {
	s := api.Status{Boxes: []api.Box{}, Processes: []api.Process{}, Failed: m.failed.reasons()}
	tasks, err := tasksOf(ctx, m)
	if err != nil {
		return s, err
	}
	for _, t := range tasks {
		if t.State == fleet.Stopped {
			continue
		}
		b := api.Box{Box: t.Box, Server: t.Server, Task: t.ID, PID: t.PID, Started: t.Started.UTC()}
		processes, err := processesOf(m.folder.File(LogFolder), b)
		if err != nil {
			return s, err
		}
		b.Processes = membersOf(t, processes)
		for i := range processes {
			if p := &processes[i]; runs(*p) {
				p.Memory = memoryOf(b.Processes, p.PID)
			}
		}
		s.Boxes = append(s.Boxes, b)
		s.Processes = append(s.Processes, processes...)
	}
	s.Processes = append(s.Processes, sleepersOf(m, s.Processes)...)
	return s, nil
}

// sleepersOf lists the processes whose memory is saved on disk until their next call.
func sleepersOf(m *machine, known []api.Process) []api.Process {
	if _, err := os.Stat(m.folder.File(memory.KeyFile)); err != nil {
		return nil // no process has ever saved its memory
	}
	var all []api.Process
	for _, k := range memory.Sleepers(snapshot.NewFolder(m.snapshots())) {
		if slices.ContainsFunc(known, func(p api.Process) bool { return p.Box == k.Box && p.Process == k.Process }) {
			continue
		}
		_, server := storage.BoxID(k.Box).Parts()
		p := api.Process{Server: server, Box: k.Box, Process: k.Process, Sessions: []string{k.Process}, State: "stopped", Detail: memory.Says(k.Size), Since: k.Saved}
		if of, sessions := served(filepath.Join(m.folder.File(LogFolder), server), proc.LogName(k.Process)); of == k.Process {
			p.Sessions = sessions
		}
		all = append(all, p)
	}
	return all
}

func vitalsOf(ctx context.Context, m *machine) (api.Vitals, error) {
	s, err := statusOf(ctx, m)
	if err != nil {
		return api.Vitals{}, err
	}
	v := systemVitals(m.folder.Path)
	v.Processors = runtime.NumCPU()
	for _, b := range s.Boxes {
		for _, p := range b.Processes {
			v.MemoryBoxes += p.Memory
		}
	}
	return v, nil
}

// processesOf returns the server's processes in a box. For a box that is a process, it reads the
// file that the box's runner keeps beside the logs.
func processesOf(folder string, b api.Box) ([]api.Process, error) {
	var err error
	text, ok := runner.Processes(b.Task)
	if !ok {
		text, err = os.ReadFile(filepath.Join(folder, b.Server, filepath.Base(b.Task)+".processes"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the box has not started a process yet, or has ended meanwhile
	}
	var own []api.Process
	if err == nil {
		err = json.Unmarshal(text, &own)
	}
	if err != nil {
		return nil, fmt.Errorf("read how the processes of box %s are: %w", b.Box, err)
	}
	for i := range own {
		p := &own[i]
		p.Server, p.Box, p.Sessions = b.Server, b.Box, []string{p.Process}
		if of, sessions := served(filepath.Join(folder, b.Server), proc.LogName(p.Process)); of == p.Process {
			p.Sessions = sessions
		}
	}
	return own, nil
}

// runs reports whether a process has not ended.
func runs(p api.Process) bool { return p.PID != 0 && (p.State == "started" || p.State == "ready") }

// membersOf lists the operating system's processes of a task, without its runner. A runner leads a
// session (setsid), and the processes that it starts stay in that session. If the box is in this
// program, or is confined, each server process leads a session instead.
func membersOf(t fleet.Status, processes []api.Process) []api.Member {
	var leaders []int
	for _, p := range processes {
		if runs(p) {
			leaders = append(leaders, p.PID)
		}
	}
	if fleet.PlaceOf(t.ID) != boxes.Inside {
		leaders = append(leaders, t.PID)
	}
	return slices.DeleteFunc(inSessions(leaders), func(m api.Member) bool { return m.PID == t.PID })
}

// memoryOf returns the memory in bytes of a process and of the processes in its group. The argument
// all has the processes of its box.
func memoryOf(all []api.Member, pid int) (bytes int64) {
	for _, m := range all {
		if m.PID == pid || m.Group == pid {
			bytes += m.Memory
		}
	}
	return bytes
}

// billOf returns a bill for the API. Unless since is zero, the bill begins with the day of that time.
func billOf(b bill.Bill, since time.Time) api.Bill {
	shares := b.Shares
	if !since.IsZero() {
		b.Since, shares = b.After(since)
	}
	return api.Bill{Since: b.Since.UTC(), Until: b.Until.UTC(), Shares: append([]api.Share{}, shares...)} // an empty list must be [] in JSON, not null
}

// Stored returns the API for operators of a data folder that no Run uses. The API permits every
// operation to all its callers. The caller of Stored closes the store.
func Stored(store storage.Store, name, data string) http.Handler {
	return api.New(api.Options{
		Info: api.Info{Place: api.PlaceStore}, Store: store, Pushed: strings.HasPrefix(name, dynamodb),
		Caller: func(*http.Request, apikey.Right) (api.Caller, error) {
			return api.Machine("the operator of this machine"), nil
		},
		Status: func(context.Context) (api.Status, error) {
			return api.Status{Boxes: []api.Box{}, Processes: []api.Process{}}, nil
		},
		Output: keptOutput(filepath.Join(data, LogFolder)),
		History: api.History{
			Calls: past(data, (*history.History).Calls), Series: past(data, (*history.History).Series),
			People: past(data, (*history.History).People), Starts: past(data, (*history.History).Starts),
		},
		Bill: func(_ context.Context, since time.Time) (api.Bill, error) {
			b, err := bill.Read(data)
			return billOf(b, since), err
		},
	})
}

// past returns a function that opens the history in a data folder, and reads it with the function
// read. Without a history file it reads an empty history.
func past[Q, T any](data string, read func(*history.History, context.Context, Q) (T, error)) func(context.Context, Q) (T, error) {
	return func(ctx context.Context, q Q) (T, error) {
		h, path := history.New(keptCalls), filepath.Join(data, HistoryFile)
		if _, err := os.Stat(path); err == nil {
			if err := h.Open(path); err != nil {
				var none T
				return none, err
			}
			defer func() { _ = h.Close() }() // nothing was written
		}
		return read(h, ctx, q)
	}
}
