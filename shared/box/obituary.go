package box

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
)

// obituary is why requests end that the process leaves open.
func (p *process) obituary() *fault {
	if p.failed != nil {
		return p.fill(p.failed)
	}
	phase, when := PhaseRuntime, ""
	switch {
	case p.state == Ready:
	case p.spoke:
		phase, when = PhaseMCPInit, " before it answered initialize"
	default:
		phase, when = PhaseProcessStart, " before it answered initialize"+p.lacks
	}
	how := "closed its stdin or stdout and did not exit"
	e, gone := p.exit()
	if gone && !isClosed(p.child.Abandoned()) {
		how = e.String() // else by our signal
	}
	starved := gone && p.starved(e, p.child.KernelKilled())
	if starved {
		how += ", it seems for want of memory"
	}
	f := p.fill(p.box.server.fault(phase, "%s%s", how, when))
	f.data.OutOfMemory = starved
	f.words = cmp.Or(proc.LastLine(f.data.Stderr), proc.LastLine(f.data.Stdout))
	f.after = p.scriptsNotRun()
	return f
}

// fill adds to a fault what is known of the process.
func (p *process) fill(f *fault) *fault {
	if p.child == nil {
		return f // it may hold what is known of an install
	}
	f.data.NoiseLines = p.noise
	f.data.Stderr, f.data.Stdout = p.stderr.Last(p.box.hide), p.stdout.Last(p.box.hide)
	f.data.Since = p.child.Since().UTC()
	if e, gone := p.exit(); gone {
		f.data.ExitCode, f.data.Signal = e.Code, e.Signal
	}
	return f
}

// howItEnded is the last line of its log.
func (p *process) howItEnded() string {
	if e, gone := p.exit(); gone {
		return fmt.Sprintf("process %d %s", p.child.PID(), e)
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.failed == nil {
		return "no process was started"
	}
	return p.failed.whole()
}

// exit is how the process ended, if it has.
func (p *process) exit() (proc.Exit, bool) {
	if p.child == nil {
		return proc.Exit{}, false
	}
	return p.child.Exit()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// noted keeps a line of stdout that was no message: it may be why the process ends.
func (p *process) noted(line []byte) {
	if len(line) > proc.MaxTail {
		line = []byte(p.box.hide.End(p.box.hide.Text(string(line[:proc.MaxTail]))))
	}
	p.log.Stdout(line)
	_, _ = p.stdout.Write(append(slices.Clone(line), '\n')) // never fails
}

// starved says whether a process that ended by itself did so for want of memory.
// killed says that the kernel has killed something for it meanwhile.
func (p *process) starved(e proc.Exit, killed bool) bool {
	if p.stopping || e.Code != nil && *e.Code == 0 {
		return false
	}
	said, _ := p.stderr.Text()
	also, _ := p.stdout.Text()
	said = strings.ToLower(said + "\n" + also)
	return killed && e.Signal == "SIGKILL" || slices.ContainsFunc([]string{
		"out of memory", "cannot allocate memory", "memoryerror", "bad_alloc", "memory allocation of",
	}, func(words string) bool { return strings.Contains(said, words) })
}
