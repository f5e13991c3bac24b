package runner

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// adapter connects a box to the relay: it implements the runner's Executor and the box's Sink.
type adapter struct {
	*box.Box
	link frame.Link
	// memory limits how much memory the processes of all boxes on one machine use together. On
	// AWS, and inside of dormouse run, memory is nil.
	memory *guard.Memory
	show   *statusFile                            // shows the states of processes; nil for none
	all    *sharing                               // records which sessions share a process; nil if logs are not kept
	name   func(session, principal string) string // returns the name of a session's process

	server  string // the name of the server
	metrics string // namespace of the metrics, "" for no metrics

	installs    *keptInstalls
	provisioner *provision.Provisioner
	log         *slog.Logger
}

// setup is the folders and the settings of a box.
type setup struct {
	work  string   // folder for workspaces and temporary files, which only this runner uses
	cache string   // install cache, which all boxes of the machine share
	locks string   // folder of lock files of packages, which take precedence over those in the cache; "" for none
	logs  string   // folder for the stderr of servers' processes, "" for none
	show  bool     // errors for clients quote the output of processes
	task  string   // the host's name for this runner, such as the ARN of its task
	era   wire.Era // which protocol versions the server speaks, "" if that is not known
	on    sandbox.Support
	keep  keeping // where workspaces, and the memory of processes, are stored
	box   storage.BoxID
	gen   int64
	env   environment  // the settings of the box
	own   environment  // the environment of this program, without settings of boxes
	guard *guard.Guard // nil in a program with a single box
	image *frame.Image // the server's own container image; nil if the box has the image of all boxes, or none

	installs *keptInstalls // nil if no installs are stored
	baked    string        // folder of installs in the image, "" for none
}

// newBox makes the box of a server. If the server must not run here, each start of a process fails
// with the reason.
func newBox(s serversfile.Server, at setup, log *slog.Logger) *adapter {
	code := s
	code.Path = at.own["PATH"]
	s, unresolved := s.Resolve(at.env.lookup)
	if unresolved == nil {
		s, unresolved = inImage(s, at.image)
	}
	keeper := ""
	if unresolved == nil {
		s, keeper, unresolved = sealed(s, at)
	}
	b := &adapter{log: log, installs: at.installs, server: s.Name, metrics: at.env["DORMOUSE_METRICS"]}
	tools := s.ToolTimeout
	if tools == 0 {
		tools = -1 // "off" in the servers file; package box uses a negative value for "no limit"
	}
	environ := at.own
	own := box.Server{
		Name: s.Name, Command: s.Command, Args: s.Args, Env: s.Env, Given: given(at.image), Unset: s.Unset, Cwd: s.Cwd, Base: environ,
		Principal: s.Principal(), Scope: box.Scope(s.Box.Scope), Secrets: s.Box.Secrets, ShowOutput: at.show, Lists: s.Record && !s.OwnLists, Mark: at.work, Guard: at.guard, Memory: at.guard.Memory(), Era: at.era,
		StartupTimeout: s.StartupTimeout, ToolTimeout: tools, AnswerTimeout: s.AnswerTimeout, Idle: s.Idle,
	}
	if at.logs != "" && own.Memory == nil { // dormouse run has started the runner as a program of its own
		b.memory = guard.NewMemory(nil)
		b.memory.Ask = func() { b.link.Status(frame.Status{Phase: frame.PhaseMemory}) }
		own.Memory = b.memory
	}
	if !own.Memory.Known() {
		own.MaxProcesses = maxProcesses
	}
	b.provisioner = provisionerFor(s, at, log)
	own.Provisioner, own.Kept = b.provisioner, box.Scope(s.Kept())
	own.Refusals = s.Box.Hosts != nil && unresolved == nil
	own.Keeper = at.keep.keeper(s, at.box, at.gen, at.work, log)
	if s.Box.Memory && unresolved == nil {
		own.Code = serversfile.NewRecord(code).Digest
		own.Images, unresolved = at.keep.memory(own.Keeper, at.box, at.gen)
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

// DrainTime is how long calls in flight may take to end when the runner is told to stop.
const DrainTime = 5 * time.Second

// live runs the link to the host until the box sleeps, a newer runner runs the box, or ctx ends.
// When ctx ends, live stops the processes while the link still works, so that the responses to
// open requests reach the host.
func live(ctx context.Context, link frame.Link, guarded *guard.Guard, made func() *prepared) error {
	ended := make(chan struct{})
	stopped := make(chan struct{})
	guarded.Go(func() {
		defer close(stopped)
		var within time.Duration
		select {
		case <-ctx.Done():
			within = DrainTime
		case <-ended:
		}
		p := made()
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

// Deliver implements frame.Executor.
func (b *adapter) Deliver(d frame.Deliver) {
	b.all.note(b.name(string(d.Session), d.Principal), string(d.Session))
	b.Box.Deliver(d)
}

// Halt implements frame.Executor.
func (b *adapter) Halt(h frame.Halt) {
	b.log.Info("stopped by an operator", "session_id", h.Session, "by", h.By, "within_ms", h.Within().Milliseconds())
	b.Box.Halt(h)
}

// IdleSince implements frame.Executor.
func (b *adapter) IdleSince() (time.Time, bool) {
	if b.installs.busy() {
		return time.Time{}, false
	}
	return b.Box.IdleSince()
}

// Event implements box.Sink.
func (b *adapter) Event(e frame.Event) { b.link.Event(e) }

// Status implements box.Sink.
func (b *adapter) Status(s frame.Status) { b.link.Status(s) }

// Process implements box.Sink.
func (b *adapter) Process(s box.ProcessStatus) {
	b.show.show(s)
	if s.Took > 0 {
		attrs := []any{"process", s.Process, "session_id", s.Session}
		b.log.Info("server started", append(attrs, meter.Started(b.server, s.Took, b.metrics)...)...)
	}
}
