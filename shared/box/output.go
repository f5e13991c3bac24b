package box

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

// output is what a process prints besides its messages, with other facts that may explain why it
// ended.
type output struct {
	hide   *redact.Redactor
	log    *proc.Log // all that the process prints besides its messages, nil for no log
	stderr proc.Tail
	stdout proc.Tail // lines of stdout that were no messages
	wrote  written
	spoke  bool     // the process has sent a message
	unrun  []string // packages whose install scripts were not run
	over   bool     // the process used more memory than its sandbox allows, and was killed

	refused refusals
}

// written is how much a process had written at one moment.
type written struct {
	lines  int64 // lines of stdout that were no messages
	kept   int64 // how many of these lines output.stdout has; the others may be parts of messages
	stderr int64 // bytes of stderr
	stdout int64 // bytes of the kept lines
	at     time.Time
}

func (o *output) now() written {
	w := o.wrote
	w.stderr, w.stdout, w.at = o.stderr.Total(), o.stdout.Total(), time.Now()
	return w
}

// silent reports whether the process has written nothing besides messages.
func (o *output) silent() bool {
	w := o.now()
	w.at = time.Time{}
	return w == written{}
}

// words returns the line that best explains the end of the process: a line of stderr, or else of
// stdout. Output before since does not count.
func (o *output) words(since written) string {
	return cmp.Or(proc.LastWords(o.stderr.Since(since.stderr, o.hide)), marked(proc.LastWords(o.stdout.Since(since.stdout, o.hide))))
}

// keep stores a line of stdout that was no message, because it may explain why the process ends.
func (o *output) keep(line []byte) {
	if len(line) > proc.MaxTail {
		line = []byte(o.hide.End(o.hide.Text(string(line[:proc.MaxTail]))))
	}
	o.log.Stdout(line)
	_, _ = o.stdout.Write(append(slices.Clone(line), '\n')) // never fails
}

// maxQuote is how many bytes of a line an error quotes.
const maxQuote = 200

// quote returns the beginning of a line, without secrets.
func (o *output) quote(line []byte) string {
	said := strings.ToValidUTF8(string(line[:min(len(line), maxQuote)]), "")
	if said = o.hide.Text(said); len(line) > maxQuote {
		said = o.hide.End(said) + "…"
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, said)
}

// tails returns the ends of stderr and stdout, without secrets.
func (o *output) tails() (stderr, stdout string) {
	return o.stderr.Since(0, o.hide), o.stdout.Since(0, o.hide)
}

// besides returns what a process did instead of sending its first response, as a text to append to
// "it runs". The argument words is the line of output that is quoted, "" for none.
func (o *output) besides(words string) string {
	switch {
	case words != "":
		return ", and has printed text"
	case o.spoke:
		return ", and has sent other messages"
	case o.wrote.lines > 0:
		return ", and has written to stdout what is no MCP message"
	default:
		return ", and has said nothing"
	}
}

// starved reports whether a process that ended by itself seems to have run out of memory. The
// argument killed is true if the kernel has killed a process, perhaps another one, for lack of
// memory after this one started. Output before since does not count.
func (o *output) starved(e proc.Exit, killed bool, since written) bool {
	if e.Code != nil && *e.Code == 0 {
		return false
	}
	said, _ := o.stderr.Text(since.stderr)
	also, _ := o.stdout.Text(since.stdout)
	said = strings.ToLower(said + "\n" + also)
	return killed && e.Signal == "SIGKILL" || slices.ContainsFunc([]string{
		"out of memory", "cannot allocate memory", "memoryerror", "bad_alloc", "memory allocation of",
	}, func(words string) bool { return strings.Contains(said, words) })
}

// marked adds to a line of output that it comes from stdout.
func marked(line string) string {
	if line == "" {
		return ""
	}
	return line + " (stdout)"
}

// ofDockerRun returns advice for a container that failed to start: a container without -i reads
// nothing, and with -t it needs a terminal.
func ofDockerRun(command string, args []string) string {
	if engine := filepath.Base(command); engine != "docker" && engine != "podman" || len(args) == 0 || args[0] != "run" {
		return ""
	}
	has := func(words ...string) bool {
		return slices.ContainsFunc(args, func(arg string) bool { return slices.Contains(words, arg) })
	}
	switch {
	case has("-it", "-ti", "--tty"):
		return ". Write -i without -t: a server has no terminal"
	case !has("-i", "--interactive", "--interactive=true", "-di", "-id"):
		return ". docker run needs -i: without it the server reads nothing"
	}
	return ""
}

// scriptsNotRun returns advice for a process that failed to start: it names the packages whose
// install scripts were not run.
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
