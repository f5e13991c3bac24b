package proc

import (
	"regexp"
	"strings"
)

// maxTelling is how many of the last lines [LastWords] searches, not counting those that never
// name a reason.
const maxTelling = 20

var (
	// idle matches lines that come after the reason of a failure and do not name it: advice, and
	// the stack and the members of an error in Node.
	idle = regexp.MustCompile("^\\s*at |^\\s*\\.\\.\\. \\d+ (lines matching|more)|^Node\\.js v\\d|^\\s+\\[?\\w+\\]?: .*[,{\\[]$|^\\s+(errno|code|syscall|address|port|path|url): |" +
		"triggerUncaughtException\\(|^\\(Use `node |^note: run with `RUST_BACKTRACE|^(Run|See) '.* --help'|npm notice|A complete log of this run|For further information visit")
	// frame matches the line of a frame in a Python traceback.
	frame = regexp.MustCompile(`^[\s|]*File ".*", line \d+`)
	// telling matches words that are in most lines that name a reason.
	telling = regexp.MustCompile(`(?i)error|fatal|exception|cannot|could not|failed|not found|missing|no matching|panic:`)
	// spoken matches paths, and the prefix of npm's lines. Both are removed before telling is
	// applied: a path may contain any word, and npm calls each of its lines an error.
	spoken = regexp.MustCompile(`^npm (error|ERR!)( code)?|\S*/\S*`)
	// cause matches lines that give the cause of the line before, as programs in Rust and Java
	// print them.
	cause  = regexp.MustCompile(`^([Cc]ause|Caused by):`)
	letter = regexp.MustCompile(`\pL`)
)

// LastWords returns the line of a tail that best explains the end of a program, for an error
// message: the last line about an error, or else the last line with any words.
func LastWords(tail string) string {
	all := strings.Split(strings.TrimSpace(tail), "\n")
	lines := said(all)
	lines = lines[max(0, len(lines)-maxTelling):]
	for i := len(lines) - 1; i >= 0; i-- {
		if lines[i].telling {
			return lines[i].text + lines[i].hint
		}
	}
	if len(lines) > 0 {
		return lines[len(lines)-1].text
	}
	return strings.TrimSpace(all[len(all)-1])
}

// saidLine is a line of output. The field telling is true if the line is about an error; hint is
// the advice in parentheses after the line.
type saidLine struct {
	text    string
	telling bool
	hint    string
}

func said(all []string) (lines []saidLine) {
	traced := false // the previous line was in a Python traceback
	caused := false // the previous line was a cause, or began a list of causes
	for i, line := range all {
		text := strings.Trim(line, " \t\r|")
		// Every cause in a list is telling: LastWords takes the last one, which is the deepest.
		caused = cause.MatchString(text) || caused && indent(line) > 0
		switch {
		case frame.MatchString(line):
			traced = true
			continue
		case traced && frame.MatchString(all[i-1]) && indent(line) > indent(all[i-1]):
			continue // the source line of a frame
		case !letter.MatchString(line):
			continue
		case strings.HasPrefix(text, "[cause]: "):
			// Node prints the cause below an error such as "fetch failed".
			if n := len(lines) - 1; n >= 0 && !strings.Contains(lines[n].text, " (cause: ") {
				lines[n].text += " (cause: " + strings.TrimSuffix(strings.TrimPrefix(text, "[cause]: "), " {") + ")"
			}
			continue
		case idle.MatchString(line), text == "Caused by:":
			continue
		case strings.HasPrefix(text, "hint: "):
			if n := len(lines) - 1; n >= 0 {
				lines[n].hint = " (" + text + ")"
			}
			caused = false
			continue
		}
		// The line after a traceback is the exception, whatever its name is.
		lines = append(lines, saidLine{text: text, telling: traced || caused || telling.MatchString(spoken.ReplaceAllString(text, ""))})
		traced = false
	}
	return lines
}

// indent returns how many bytes of space and bars a line begins with.
func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " \t|")) }
