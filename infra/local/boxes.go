package local

import (
	"cmp"
	"context"
	"fmt"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/ecs"
	boxes "github.com/dormouse-mcp/dormouse/shared/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/meter"
)

// startFleet makes this program the fleet, whose boxes are child processes.
func (m *machine) startFleet(context.Context) error {
	if err := boxes.BecomeSubreaper(); err != nil {
		return err
	}
	if err := m.environ.checkLocks(); err != nil {
		return err
	}
	// If only the user of this machine can call, errors may show the logs too.
	env := m.environ.boxes(m.folder.File(LogFolder), m.public.private())
	m.boxes = boxes.NewPool(boxes.Config{
		Command: m.cfg.Runner[0], Args: m.cfg.Runner[1:], Dir: m.folder.Path, MaxTasks: maxBoxes,
		Env:      env,
		Disabled: m.environ.boxesOff(m.log),
		OnStart:  m.boxStarted, OnStop: m.boxStopped,
		Output: func(t fleet.Status, line string) { m.output("box "+t.Server, line) },
		Logger: m.log,
	})
	m.closers = append(m.closers, m.boxes.Close)
	return nil
}

// LogFolder is the folder in the data folder with the stderr output of servers'
// processes: SERVER/SESSION.NANOSECONDS.log, and .log.old for older output.
const LogFolder = "logs"

// maxBoxes is how many boxes one machine runs at the same time.
const maxBoxes = 64

func (m *machine) boxStarted(t fleet.Status) {
	m.recorder.Record(journal.Event{Kind: journal.BoxWake, Name: t.Server, PID: t.PID, Detail: t.Box})
}

// boxStopped sweeps the box, as the rule for task events does on AWS. A box that said
// bye exits with 0 and needs no sweep.
func (m *machine) boxStopped(t fleet.Status) {
	e := journal.Event{Kind: journal.BoxSleep, Name: t.Server, PID: t.PID, Duration: t.Stopped.Sub(t.Started)}
	if t.ExitCode != 0 {
		e.Kind, e.Detail = journal.BoxCrash, fmt.Sprintf("exit code %d %s %s", t.ExitCode, t.Signal, t.Reason)
	}
	m.recorder.Record(e)
	m.ledger.Stopped(t)
	if t.ExitCode != 0 {
		m.functions.sweep(&t)
	}
}

// boxSize returns the size that a server's box would have on AWS.
func (m *machine) boxSize(server string) meter.BoxSize {
	size := meter.DefaultBox()
	s, _ := m.servers.Server(server)
	f, err := ecs.Size{CPUs: cmp.Or(s.Box.CPUs, size.VCPUs), MemoryMB: cmp.Or(s.Box.MemoryMB, int(size.MemoryMB))}.Fargate()
	if err == nil { // otherwise Fargate has no task of this size
		size.VCPUs, size.MemoryMB = f.CPUs, float64(f.MemoryMB)
	}
	return size
}
