// Command picture types the first block of commands of README.md into two terminals, and
// writes what they show as an animated SVG. The lines are exactly those that the program
// printed; only waits are shorter. make pictures runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
)

const (
	columns  = 100
	longest  = 1500 * time.Millisecond // the longest wait in the picture
	keys     = 3                       // how many keys are typed at once
	typing   = 90 * time.Millisecond   // how long so many keys take
	reading  = 1200 * time.Millisecond // the pause after each command
	atTheEnd = 5 * time.Second
	patience = 5 * time.Minute
)

func main() {
	program := flag.String("dormouse", "../../bin/dormouse", "the program `FILE`")
	readme := flag.String("readme", "../../README.md", "the page `FILE` with the commands")
	out := flag.String("out", "../../docs/two-minutes.svg", "the picture `FILE`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *program, *readme, *out); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program, readme, out string) error {
	page, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	lines := commands(string(page))
	if len(lines) == 0 {
		return fmt.Errorf("%s has no block of commands below <!-- run -->", readme)
	}
	if program, err = filepath.Abs(program); err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "picture")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }() // the folder is temporary in any case
	svg, err := film(ctx, lines, filepath.Dir(program), folder)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s: %d kB\n", out, len(svg)/1000)
	return os.WriteFile(out, svg, 0o644) //nolint:gosec // everybody reads it
}

// commands returns the commands of the page's first block after <!-- run -->, without comments.
func commands(page string) (lines []string) {
	_, block, _ := strings.Cut(page, "<!-- run -->\n```sh\n")
	block, _, _ = strings.Cut(block, "\n```")
	for line := range strings.Lines(block) {
		command, _, _ := strings.Cut(line, " #")
		if command = strings.TrimSpace(command); command != "" {
			lines = append(lines, command)
		}
	}
	return lines
}

// film records the commands. The command "dormouse run" does not return, so it keeps the first
// terminal, and film types the next commands into the second. The film ends when the server is asleep
// again.
func film(ctx context.Context, lines []string, bin, folder string) (svg []byte, err error) {
	r := &reel{last: time.Now()}
	first, second := r.terminal(16), r.terminal(8)
	here := first
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+folder, "TERM=xterm-256color", "CI=", "NO_COLOR=")
	if cache, err := exec.CommandContext(ctx, "npm", "config", "get", "cache").Output(); err == nil {
		env = append(env, "npm_config_cache="+strings.TrimSpace(string(cache)))
	}
	var host *exec.Cmd
	defer func() {
		if host != nil && host.Process != nil {
			_ = host.Process.Signal(os.Interrupt) // the host may have ended
			_ = host.Wait()
		}
	}()
	for _, line := range lines {
		here.types(line)
		cmd := exec.CommandContext(ctx, "bash", "-c", "exec "+line)
		cmd.Dir, cmd.Env = folder, env
		done, err := here.shows(cmd)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(line, "dormouse run") {
			host = cmd
			if err := here.waitFor(ctx, "Nothing ", done); err != nil {
				return nil, err
			}
			r.hold(reading)
			here = second
			continue
		}
		<-done
		if err := cmd.Wait(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", line, err, here.screen.String())
		}
		r.hold(reading)
	}
	if host == nil {
		return nil, errors.New("no command hosts a server")
	}
	if err := first.waitFor(ctx, "asleep after", nil); err != nil {
		return nil, err
	}
	r.hold(atTheEnd)
	return r.svg(), nil
}

// reel has what all terminals showed, and when. Waits are cut to the constant longest. It is
// safe for concurrent use.
type reel struct {
	mu    sync.Mutex
	last  time.Time // time of the last change
	now   time.Duration
	all   []*terminal
	shots []shot // texts of all rows
}

// terminal is one screen of the picture.
type terminal struct {
	reel    *reel
	screen  *vt.Emulator
	top     int           // number of rows of the terminals above it
	changed chan struct{} // closed at the next change
	shown   strings.Builder
}

func (r *reel) terminal(rows int) *terminal {
	t := &terminal{reel: r, screen: vt.NewEmulator(columns, rows), changed: make(chan struct{})}
	for _, before := range r.all {
		t.top += before.screen.Height()
	}
	go func() { _, _ = io.Copy(io.Discard, t.screen) }() // drops the terminal's answers to queries
	r.all = append(r.all, t)
	return t
}

// writes shows output. The argument lasts is how long the output takes in the picture; 0 means the
// real time since the last output, cut to the constant longest.
func (t *terminal) writes(output string, lasts time.Duration) {
	t.reel.mu.Lock()
	defer t.reel.mu.Unlock()
	if lasts == 0 {
		lasts = min(time.Since(t.reel.last), longest)
	}
	t.reel.last = time.Now()
	t.reel.now += lasts
	_, _ = t.screen.WriteString(output) // a screen takes everything
	t.shown.WriteString(output)
	t.reel.take(t)
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *terminal) types(line string) {
	t.writes("\x1b[2m$\x1b[0m ", typing)
	for rest := line; rest != ""; {
		n := min(keys, len(rest))
		t.writes(rest[:n], typing)
		rest = rest[n:]
	}
	t.writes("\r\n", 3*typing)
}

// shows starts a command in the terminal. The channel done is closed when the command has written
// everything.
func (t *terminal) shows(cmd *exec.Cmd) (done chan struct{}, err error) {
	size := &pty.Winsize{Rows: uint16(t.screen.Height()), Cols: columns} //nolint:gosec // a few rows
	tty, err := pty.StartWithSize(cmd, size)
	if err != nil {
		return nil, err
	}
	done = make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<16)
		for {
			n, err := tty.Read(buffer)
			if n > 0 {
				t.writes(string(buffer[:n]), 0)
			}
			if err != nil {
				return
			}
		}
	}()
	return done, nil
}

// waitFor waits until the terminal has shown a text.
func (t *terminal) waitFor(ctx context.Context, text string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		t.reel.mu.Lock()
		shown, changed := strings.Contains(t.shown.String(), text), t.changed
		t.reel.mu.Unlock()
		if shown {
			return nil
		}
		select {
		case <-changed:
		case <-ended:
			return fmt.Errorf("the command ended before it said %q:\n%s", text, t.screen.String())
		case <-ctx.Done():
			return fmt.Errorf("no %q: %w\n%s", text, ctx.Err(), t.screen.String())
		}
	}
}

// hold leaves the picture as it is for a while.
func (r *reel) hold(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now += d
	r.last = time.Now()
}
