package box

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// output holds what a process prints besides its messages, and other facts that explain
// its end.
type output struct {
	hide   *redact.Redactor
	log    *proc.Log // the full log, nil for none
	stderr proc.Tail
	stdout proc.Tail // what was no message
	wrote  noise
	spoke  bool     // it has sent a message
	lacks  string   // the message that a script does not exist, "" for none
	unrun  []string // packages whose install scripts were not run
}

// noise counts the lines of stdout that were no messages.
type noise struct {
	lines int64
	kept  int64 // how many of lines output keeps; the others may be parts of messages
}

// keep keeps a line of stdout that was no message, because it may explain why the
// process ends.
func (o *output) keep(line []byte) {
	if len(line) > proc.MaxTail {
		line = []byte(o.hide.End(o.hide.Text(string(line[:proc.MaxTail]))))
	}
	o.log.Stdout(line)
	_, _ = o.stdout.Write(append(slices.Clone(line), '\n')) // never fails
}

// tails returns the ends of stderr and stdout, without secrets.
func (o *output) tails() (stderr, stdout string) { return o.stderr.Last(o.hide), o.stdout.Last(o.hide) }

// starved reports whether a process that ended by itself seems to have run out of memory.
// killed says that the kernel has killed some process for lack of memory since this one
// started.
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

// marked adds to a line that it comes from stdout.
func marked(line string) string {
	if line == "" {
		return ""
	}
	return line + " (stdout)"
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
	return fmt.Sprintf(". Install scripts were not run (of %s): if the server needs their results, set x-dormouse.box.install_scripts: true to run them in a sandbox", names)
}
