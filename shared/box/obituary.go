package box

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// output keeps what a process prints beside messages, and what else explains its end.
type output struct {
	hide   *redact.Redactor
	log    *proc.Log // the full log, nil for none
	stderr proc.Tail
	stdout proc.Tail // what was no message
	lines  int64     // of stdout that were no messages
	spoke  bool      // it has sent a message
	lacks  string    // words about a script that does not exist, "" for none
	unrun  []string  // packages whose install scripts were not run
}

// noise keeps a line of stdout that was no message, because it may explain why the
// process ends.
func (o *output) noise(line []byte) {
	if len(line) > proc.MaxTail {
		line = []byte(o.hide.End(o.hide.Text(string(line[:proc.MaxTail]))))
	}
	o.log.Stdout(line)
	_, _ = o.stdout.Write(append(slices.Clone(line), '\n')) // never fails
}

// tails returns the ends of stderr and stdout, without secrets.
func (o *output) tails() (stderr, stdout string) { return o.stderr.Last(o.hide), o.stdout.Last(o.hide) }

// starved reports whether a process that ended by itself seems to have run out of
// memory. killed says that the kernel has killed a process for want of memory meanwhile.
func (o *output) starved(e proc.Exit, killed bool) bool {
	if e.Code != nil && *e.Code == 0 {
		return false
	}
	said, _ := o.stderr.Text()
	also, _ := o.stdout.Text()
	said = strings.ToLower(said + "\n" + also)
	return killed && e.Signal == "SIGKILL" || slices.ContainsFunc([]string{
		"out of memory", "cannot allocate memory", "memoryerror", "bad_alloc", "memory allocation of",
	}, func(words string) bool { return strings.Contains(said, words) })
}

// obituary is the fault with which the process's open requests end.
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
		phase, when = PhaseProcessStart, " before it answered initialize"+p.output.lacks
	}
	how := "closed its stdin or stdout and did not exit"
	e, exited := p.exit()
	if exited && !isClosed(p.child.Abandoned()) {
		how = e.String() // else our own signal ended it
	}
	starved := exited && !p.told && p.output.starved(e, p.child.KernelKilled())
	if starved {
		how += ", it seems for want of memory"
	}
	f := p.fill(p.box.server.fault(phase, "%s%s", how, when))
	f.data.OutOfMemory = starved
	f.words = cmp.Or(proc.LastLine(f.data.Stderr), proc.LastLine(f.data.Stdout))
	if !p.greeted {
		f.after = scriptsNotRun(p.output.unrun)
	}
	return f
}

// scriptsNotRun names, for a process that failed to start, the packages whose install
// scripts were not run.
func scriptsNotRun(packages []string) string {
	if len(packages) == 0 {
		return ""
	}
	const most = 5
	names := strings.Join(packages[:min(most, len(packages))], ", ")
	if more := len(packages) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf(". Install scripts were not run (of %s): if the server needs what they make, x-dormouse.box.install_scripts: true has them run, in a sandbox", names)
}

// fill adds to a fault what is known about the process: its exit, its output and its
// start time.
func (p *process) fill(f *fault) *fault {
	if p.child == nil {
		return f // it may hold what is known of an install
	}
	f.data.NoiseLines = p.output.lines
	f.data.Stderr, f.data.Stdout = p.output.tails()
	f.data.Since = p.child.Since().UTC()
	if e, exited := p.exit(); exited {
		f.data.ExitCode, f.data.Signal = e.Code, e.Signal
	}
	return f
}

// howItEnded returns the last line of the process's log.
func (p *process) howItEnded() string {
	if e, exited := p.exit(); exited {
		return fmt.Sprintf("process %d %s", p.child.PID(), e)
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.failed == nil {
		return "no process was started"
	}
	return p.failed.whole()
}

// exit returns how the process ended. ok is false while it runs or if it never ran.
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
