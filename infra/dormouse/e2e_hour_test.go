//go:build e2e

package dormouse_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// wide is the width of the terminal of a person.
const wide = 80

// person is somebody who typed a line on a terminal, and looks at it.
type person struct {
	t        *testing.T
	line     string
	terminal *os.File
	cmd      *exec.Cmd
	pieces   chan string // what is written on the terminal, until its last program has ended
	written  string
	seen     int // up to where of it the person has looked, without what controls the terminal
}

// controls matches what moves the cursor, clears or colors.
var controls = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// overwritten matches what a terminal shows for a moment only.
var overwritten = regexp.MustCompile(`[^\r\n]+\r([^\r\n])`)

// person types a line in the folder.
func (w *walk) person(line string) *person { return w.at(w.folder, line) }

// at is person in another folder.
func (w *walk) at(folder, line string) *person {
	w.t.Helper()
	cmd := w.shell(line)
	cmd.Dir = folder
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: wide})
	commontest.OK(w.t, err)
	w.t.Cleanup(func() { _, _, _ = terminal.Close(), cmd.Process.Kill(), cmd.Wait() })
	p := &person{t: w.t, line: line, terminal: terminal, cmd: cmd, pieces: make(chan string, 1<<16)}
	go func() {
		defer close(p.pieces)
		for piece := make([]byte, 4096); ; {
			n, err := terminal.Read(piece)
			if p.pieces <- string(piece[:n]); err != nil {
				return
			}
		}
	}()
	return p
}

// sees waits until the terminal shows a text that matches, behind what the person has seen.
func (p *person) sees(pattern string) string {
	p.t.Helper()
	is, late := regexp.MustCompile(pattern), time.After(patience)
	for {
		shown := p.shown()
		if at := is.FindStringIndex(shown[p.seen:]); at != nil {
			begin := p.seen + at[0]
			p.seen += at[1]
			return shown[begin:p.seen]
		}
		if err := p.reads(late); err != nil {
			p.t.Fatalf("%s: %v; it shows %q, want %q", p.line, err, overwritten.ReplaceAllString(shown[p.seen:], ""), pattern)
		}
	}
}

func (p *person) shown() string { return controls.ReplaceAllString(p.written, "") }

// reads waits for more on the terminal.
func (p *person) reads(late <-chan time.Time) error {
	select {
	case piece, more := <-p.pieces:
		if !more {
			return io.EOF
		}
		p.written += piece
		return nil
	case <-late:
		return context.DeadlineExceeded
	}
}

// waits looks at a wait for something that does not come: soon, and after 2 seconds.
func (p *person) waits(phases ...string) {
	p.t.Helper()
	for _, phase := range phases {
		name, _, _ := strings.Cut(phase, "  ")
		p.sees(name + "  .* … 0\\.\\d s")
	}
	for _, phase := range phases {
		p.sees(phase + ` … [2-9]\.\d s`)
	}
}

// types types something further.
func (p *person) types(text string) {
	p.t.Helper()
	_, err := io.WriteString(p.terminal, text)
	commontest.OK(p.t, err)
}

// ends waits for the end of the command, with a code. No line that moves and no row was wider
// than the terminal, but for what is to be pasted, which a line break would spoil.
func (p *person) ends(code int) {
	p.t.Helper()
	var err error
	for late := time.After(patience); err == nil; {
		err = p.reads(late)
	}
	if !errors.Is(err, io.EOF) {
		p.t.Fatalf("%s does not end: %v; it shows %q", p.line, err, p.shown())
	}
	_ = p.cmd.Wait() // see ExitCode
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%s ends with %d, want %d; it shows %s", p.line, got, code, p.shown())
	}
	for _, line := range strings.FieldsFunc(p.shown(), func(r rune) bool { return r == '\r' || r == '\n' }) {
		if n := len([]rune(line)); n > wide && strings.Contains(strings.TrimSpace(line), "  ") && !strings.Contains(line, "://") {
			p.t.Errorf("%s: a line of %d columns: %q", p.line, n, line)
		}
	}
}

func (w *walk) file(name, text string) { write(w.t, filepath.Join(w.folder, name), text) }

// Somebody adds, hosts and calls servers on a terminal, and the packages come slowly. Each wait has
// a face.
func TestE2EFirstHour(t *testing.T) {
	t.Parallel()
	w, x := newWalk(t), newIndex(t)
	w.home = w.from(x)
	w.env = append(w.env, "XDG_RUNTIME_DIR="+t.TempDir(), "TERM=xterm", "CI=")
	w.file("mine.py", "")
	w.file("servers.json", `{"mcpServers": {"small": {"command": "npx", "args": ["-y", "small-server"]}, "mine": {"command": "python3", "args": ["mine.py"]}}}`)
	p := w.person("dormouse add everything -- npx -y server-everything")
	p.waits("server-everything  resolving")
	x.metadata.opens()
	p.sees("everything  installing server-everything … ")
	x.tarballs.opens()
	p.sees(`added everything 1\.0\.0: 1 tool in \d`)
	p.ends(0)

	x = newIndex(t)
	w.home = w.from(x)
	host := w.person("dormouse run --watch --listen 127.0.0.1:0")
	host.sees("A save starts anew: mine")
	// The install began when the entry was taken, and both terminals show it.
	host.sees("small +resolving small-server … ")
	p = w.at(w.home, "dormouse call small echo until="+filepath.Join(w.home, "enough"))
	p.waits("small  (connecting|resolving.*|installing.*)")
	x.metadata.opens()
	p.sees("small  installing small-server … ")
	x.tarballs.opens()
	p.sees("echo needs message, a string: ")
	p.types("hi\n")
	p.sees("small  echo: 1 of 2 half … ")
	write(t, filepath.Join(w.home, "enough"), "")
	p.sees("Echo: hi")
	p.sees(`after waking for \d`)
	p.ends(0)
	host.types("\x03")
	host.ends(0)
}
