package runner

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// adapter joins the relay's runner and a box: it is the Executor of the one and the Sink of the
// other.
type adapter struct {
	*box.Box
	link frame.Link
	// memory bounds what the processes of this box, in a program of its own, and those of other
	// boxes use of one machine. It is nil for a box inside of dormouse run, and on AWS.
	memory *guard.Memory
	show   *statusFile                            // nil for none
	all    *sharing                               // nil if logs are not kept
	name   func(session, principal string) string // returns the name of a session's process
	took   *starts
	era    string // which protocols the server speaks, as far as the host knows

	installs    *keptInstalls
	provisioner *provision.Provisioner
	log         *slog.Logger
}

// setup has the folders and settings of a box.
type setup struct {
	work     string // folder of this runner only, for workspaces and temporary files
	cache    string // folder of installs, shared
	locks    string // folder of locks that win over those of the cache, "" for none
	logs     string // folder for the stderr of servers' processes, "" for none
	show     bool   // clients see the output of processes
	task     string // the fleet's id of this runner's task
	era      string // era of the server's protocol, "" if it is not known
	on       sandbox.Support
	keep     func(serversfile.Server) box.Keeper    // returns the Keeper of workspaces for a server; nil keeps none
	remember func(box.Keeper) (*memory.Kept, error) // keeps memory beside the workspaces of a Keeper
	env      environment
	own      environment  // of this program, without the settings of boxes
	guard    *guard.Guard // nil in a program that has one box
	image    *frame.Image // of the server, nil for that of the stack

	installs *keptInstalls // nil keeps no installs
	baked    string        // folder of installs that the image has, "" for none
}

// newBox makes the box of a server.
func newBox(s serversfile.Server, at setup, log *slog.Logger) *adapter {
	s, unresolved := s.Resolve(at.env.lookup)
	if unresolved == nil {
		s, unresolved = inImage(s, at.image)
	}
	keeper := ""
	if unresolved == nil {
		s, keeper, unresolved = sealed(s, at)
	}
	b := &adapter{log: log, era: at.era, installs: at.installs, took: newStarts(s.Name, at.env["DORMOUSE_METRICS"], log)}
	tools := s.ToolTimeout
	if tools == 0 {
		tools = -1 // "off" in the servers file is the box's value for "no limit"
	}
	environ := at.own
	own := box.Server{
		Name: s.Name, Command: s.Command, Args: s.Args, Env: s.Env, Given: given(at.image), Unset: s.Unset, Cwd: s.Cwd, Base: environ,
		Principal: s.Principal(), Scope: box.Scope(s.Box.Scope), Secrets: s.Box.Secrets, ShowOutput: at.show, Lists: s.Record && !s.OwnLists, Mark: at.work, Guard: at.guard, Apart: at.guard != nil, Memory: at.guard.Memory(), Era: bridge.Era(at.era),
		StartupTimeout: s.StartupTimeout, ToolTimeout: tools, AnswerTimeout: s.AnswerTimeout, Idle: s.Idle,
	}
	if at.logs != "" && own.Memory == nil { // on one machine, in a process of its own
		b.memory = guard.NewMemory(nil)
		b.memory.Ask = func() { b.link.Status(runner.StatusReport{Phase: frame.PhaseMemory}) }
		own.Memory = b.memory
	}
	if !own.Memory.Known() {
		own.MaxProcesses = maxProcesses
	}
	b.provisioner = provisionerFor(s, at, log)
	own.Provisioner, own.Kept = b.provisioner, box.Scope(s.Kept())
	own.Refusals = s.Box.Hosts != nil && unresolved == nil
	if at.keep != nil {
		own.Keeper = at.keep(s)
	}
	if s.Box.Memory && unresolved == nil {
		own.Images, unresolved = at.remember(own.Keeper)
	}
	if keeper != "" {
		own.Provisioner = inSeal{b.provisioner, &confiner{env: surroundings(s, environ)}, s, keeper}
	} else if s.Box.Confined() {
		if c, err := newConfiner(s, at.work, surroundings(s, environ), at.on); err != nil {
			own.Provisioner = refused{whyRefused(err)}
		} else {
			own.Sandbox = c.sandboxFor
		}
	}
	if unresolved != nil {
		own.Provisioner, own.Sandbox = refused{unresolved}, nil
	}
	if at.logs != "" {
		folder := filepath.Join(at.logs, s.Name)
		own.Stderr = (&logFiles{folder: folder, log: log}).open
		b.all = &sharing{folder: folder, log: log, known: map[string]bool{}}
		switch {
		case at.task == "":
		case at.guard != nil:
			b.show = showInside(at.task, log)
		default:
			b.show = newStatusFile(folder, at.task, log)
		}
	}
	b.Box, b.name = box.New(own, b, log), own.Scope.Name
	return b
}

// provisionerFor returns the provisioner for a server's processes.
func provisionerFor(s serversfile.Server, at setup, log *slog.Logger) *provision.Provisioner {
	environ := at.own
	c := provision.Config{
		Base: at.work, Cache: at.cache, Locks: at.locks, Baked: at.baked, Confine: installSandboxes(s, at.work, surroundings(s, environ), at.on), Compile: at.logs != "", Environ: environ, Log: log,
	}
	if at.installs != nil {
		c.Kept, c.Compile = at.installs, true
	}
	return provision.New(c, provision.Server{
		Command: s.Command, Args: s.Args, Env: s.Env, Unset: s.Unset, Cwd: s.Cwd,
		HostPath: s.Box.HostPath, Writable: s.Box.HostPathWritable,
		Workspace: s.Workspace(), Scripts: s.Box.InstallScripts,
	})
}

// drainTime is how long calls in flight have to end when the runner is told to stop.
const drainTime = 5 * time.Second

// live runs until the box is asleep, fenced or told to stop. It stops the processes while
// the link still works, so that the ends of open requests reach the host. of returns the
// box, or nil if there is none yet.
func live(ctx context.Context, link frame.Link, guarded *guard.Guard, of func() *prepared) error {
	ended := make(chan struct{})
	stopped := make(chan struct{})
	guarded.Go(func() {
		defer close(stopped)
		var within time.Duration
		select {
		case <-ctx.Done():
			within = drainTime
		case <-ended:
		}
		p := of()
		if p == nil {
			return
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), within+stopTime+saveTime)
		defer cancel()
		if err := p.box.Close(stop, within); err != nil {
			p.log.Warn("some processes of the box did not end in time", "error", err)
		}
	})
	err := link.Run(ctx)
	close(ended)
	<-stopped
	return err
}

// Deliver implements runner.Executor.
func (b *adapter) Deliver(d runner.Delivery) {
	b.all.note(b.name(string(d.Session), d.Principal), string(d.Session))
	b.Box.Deliver(d)
}

// Halt implements runner.Executor.
func (b *adapter) Halt(s storage.ID, by string, within time.Duration) {
	b.log.Info("stopped by an operator", "session_id", s, "by", by, "within_ms", within.Milliseconds())
	b.Box.Halt(s, by, within)
}

// IdleSince implements runner.Executor.
func (b *adapter) IdleSince() (time.Time, bool) {
	if b.installs.busy() {
		return time.Time{}, false
	}
	return b.Box.IdleSince()
}

// Output implements box.Sink.
func (b *adapter) Output(e box.Output) { b.link.Event(e) }

// Handshake implements box.Sink.
func (b *adapter) Handshake(s, ticket, requestedVersion string, result json.RawMessage) {
	report := runner.StatusReport{Session: storage.ID(s), Ticket: ticket, Detail: requestedVersion, Handshake: result}
	if era := string(b.Era()); era != b.era {
		report.Era = era
	}
	b.link.Status(report)
}

// Lists implements box.Sink.
func (b *adapter) Lists(s, ticket string, l box.Lists) {
	b.link.Status(runner.StatusReport{Session: storage.ID(s), Ticket: ticket, Lists: l.Kind, Own: l.Own, Handshake: l.Fingerprint})
}

// Process implements box.Sink. It does not log the state, because the box has done so.
func (b *adapter) Process(s box.ProcessStatus) {
	b.show.show(s)
	b.took.seen(s)
	if s.Full {
		b.link.Status(runner.StatusReport{Session: storage.ID(s.Session), Process: s.Process, Phase: frame.PhaseFull})
	}
}
