package box

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// report passes the state of the process to the sink, and logs it. The argument f is the error
// that ended the process, nil for none.
func (p *process) report(state ProcessState, f *fault) {
	st := p.status(state, f)
	log := p.logOf(st)
	if f != nil && p.output.log == nil {
		log = log.With("stderr", st.Stderr, "stdout", st.Stdout) // the process has no log of its own, so its output goes only here
	}
	followed, full := p.followed, state == Started && p.box.atLimit()
	if state == Ready {
		st.Took = time.Since(st.Since)
	}
	p.group.speaker.tell(pendingOutput{call: func(k Sink) {
		switch {
		case f != nil:
			log.Warn("process", "phase", string(st.Phase), "why", st.Detail, "exit_code", exitCode(st), "signal", st.Signal, "noise_lines", st.NoiseLines)
		case state == Ready:
			log.Info("process", "duration_ms", st.Took.Milliseconds())
		case followed:
			log.Info("process", "followed", true) // another process takes its place
		default:
			log.Info("process")
		}
		k.Process(st)
		if full {
			k.Status(frame.Status{Session: storage.ID(st.Session), Process: st.Process, Phase: frame.PhaseFull})
		}
	}})
}

func (p *process) logOf(st ProcessStatus) *slog.Logger {
	return p.box.log.With("server", p.box.server.Name, "process", st.Process, "session_id", st.Session,
		"client", p.box.hide.Text(wire.ClientName(p.group.speaker.init)), "pid", st.PID, "state", string(st.State))
}

func (p *process) status(state ProcessState, f *fault) ProcessStatus {
	st := ProcessStatus{Process: p.group.id, Session: p.group.speaker.id, State: state, NoiseLines: p.output.wrote.lines}
	if p.child != nil {
		st.PID, st.Since = p.child.PID(), p.child.Since().UTC()
	}
	if f != nil {
		st.Phase, st.Detail = f.data.Phase, f.whole()
	}
	if f == nil && (state == Started || state == Ready) {
		if refused := p.output.refused.since(time.Time{}); len(refused) > 0 {
			st.Detail = refused[len(refused)-1]
		} else if p.nap.lost != "" {
			st.Detail = "memory lost: " + p.nap.lost
		}
	}
	if state == Stopped && p.nap.kept {
		st.Detail = memory.Says(p.nap.size)
	}
	if e, gone := p.exit(); gone {
		st.ExitCode, st.Signal = e.Code, e.Signal
	}
	if state == Stopped || state == Exited {
		st.Stderr, st.Stdout = p.output.tails()
	}
	return st
}

func (p *process) running() ProcessState {
	if p.greeted {
		return Ready
	}
	return Started
}

func exitCode(st ProcessStatus) int {
	if st.ExitCode == nil {
		return -1
	}
	return *st.ExitCode
}

// obituary returns the error for the open requests of a process that has ended.
func (p *process) obituary() *fault {
	if p.failed != nil {
		return p.fill(p.failed)
	}
	phase, when := PhaseRuntime, ""
	switch {
	case p.greeted:
	case p.output.spoke:
		phase, when = PhaseMCPInit, " before it answered initialize"
	default:
		phase, when = PhaseProcessStart, " before it answered initialize"
	}
	how := "closed its stdin or stdout and did not exit"
	e, exited := p.exit()
	if exited && !isClosed(p.child.Abandoned()) {
		how = e.String() // after Abandoned, e would only name the signal of the box
	}
	since := p.reason()
	words := p.output.words(since)
	if words == "" && !p.output.silent() && p.greeted {
		how += " without a word"
	}
	starved := exited && !p.told && p.output.starved(e, p.child.KernelKilled(), since)
	switch {
	case p.output.over:
		how, starved = "used more memory than memory_mb allows, and was ended", true
	case starved:
		how += ", it seems for want of memory"
	}
	f := p.fill(p.box.server.fault(phase, "%s%s", how, when))
	f.data.OutOfMemory = starved
	f.words = words
	if !p.greeted {
		f.after = scriptsNotRun(p.output.unrun) + f.after
		if f.data.NoiseLines > 0 {
			f.after += ". It writes to stdout, which is for MCP only: write to stderr"
		}
		f.after += ofDockerRun(p.box.server.Command, p.box.server.Args)
	}
	return f
}

// cause returns, for the log, why the box told the process to end. If that is an error for clients,
// cause leaves out the advice in it.
func (e *ending) cause() string {
	switch {
	case e.failed != nil:
	case e.replaced != "":
		return e.replaced
	default:
		return "it had nothing to do" + e.evicted
	}
	_, what, _ := strings.Cut(e.failed.message, ": ") // what follows the name of the server
	what, _, _ = strings.Cut(what, ";")
	return strings.TrimSuffix(what, ", try again")
}

// howItEnded returns the last line for the process's log.
func (p *process) howItEnded() string {
	e, exited := p.exit()
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	switch {
	case p.nap.kept:
		return fmt.Sprintf("process %d sleeps with its memory: %s", p.child.PID(), p.cause())
	case exited && p.output.over:
		return fmt.Sprintf("process %d %s: it used more memory than memory_mb allows", p.child.PID(), e)
	case exited && p.told && !p.left:
		return fmt.Sprintf("process %d %s; Dormouse ended it: %s", p.child.PID(), e, p.cause())
	case exited:
		return fmt.Sprintf("process %d %s", p.child.PID(), e)
	case p.failed == nil:
		return "no process was started"
	default:
		return p.failed.whole()
	}
}
