package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	maxSaid   = 500     // characters of an install's stderr that an error has
	maxAnswer = 1 << 20 // bytes of a command's stdout that are read
	maxOutput = 4 << 20 // bytes of an install's output that are kept
)

// command is a program to run to its end, in a process group of its own that ends with
// it.
type command struct {
	argv []string
	dir  string
	env  []string
	log  io.Writer // gets its output, nil for none
	// start replaces cmd.Start, for example to start the command in a sandbox; nil for
	// cmd.Start.
	start func(*exec.Cmd) error
}

// commandError describes how a command failed.
type commandError struct {
	code int    // -1 if it did not exit by itself
	how  string // in words, such as "signal: killed"
	said string // the end of its stderr
	more string // a longer end of it
	hint string // advice, "" for none
	// lacks is a sentence that says which package or version the index does not have; "" for
	// another failure.
	lacks string
}

func (e *commandError) Error() string { return fmt.Sprintf("%s: %s", e.how, e.said) }

// run executes the command and returns its stdout. The error is a [*commandError]
// if the program was started.
func (c command) run(ctx context.Context) ([]byte, error) {
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = c.dir, c.env, attributes()
	out, said := &head{left: maxAnswer}, &tail{}
	cmd.Stdout, cmd.Stderr = out, said
	if c.log != nil {
		log := &shared{to: c.log}
		cmd.Stdout, cmd.Stderr = io.MultiWriter(out, log), io.MultiWriter(said, log)
	}
	// Kill the group, not only its leader: npm and uv do their work in children.
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	start := cmd.Start
	if c.start != nil {
		start = func() error { return c.start(cmd) }
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.argv[0], err)
	}
	sweep(cmd.Process.Pid)
	err := cmd.Wait()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.data.Bytes(), nil
	}
	failed := &commandError{code: -1, how: err.Error(), said: said.text(), more: string(said.data)}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		failed.code = exit.ExitCode()
	}
	return nil, failed
}

// shared serializes both outputs of a command.
type shared struct {
	mu sync.Mutex
	to io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(p)
}

// head keeps the beginning of what is written to it.
type head struct {
	data bytes.Buffer
	left int
}

// Write takes everything and never fails.
func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.left)
	h.left -= n
	h.data.Write(p[:n])
	return len(p), nil
}

// tail keeps the end of what is written to it.
type tail struct{ data []byte }

// Write takes everything and never fails.
func (t *tail) Write(p []byte) (int, error) {
	const keep = 4 * (maxSaid + 500) // bytes; more than maxSaid, because credentials are removed later
	t.data = append(t.data, p[max(0, len(p)-keep):]...)
	t.data = append(t.data[:0], t.data[max(0, len(t.data)-keep):]...)
	return len(p), nil
}

// text returns the last lines that fit. Of a longer line it returns the end.
func (t *tail) text() string {
	text := strings.TrimSpace(withoutCredentials(strings.ToValidUTF8(string(t.data), "")))
	whole := true // text begins with a line
	for n := utf8.RuneCountInString(text); n > maxSaid; n-- {
		r, size := utf8.DecodeRuneInString(text)
		text, whole = text[size:], r == '\n'
	}
	if _, rest, more := strings.Cut(text, "\n"); more && !whole {
		return strings.TrimSpace(rest)
	}
	return text
}

// userinfo finds user and password in the URLs of a text.
var userinfo = regexp.MustCompile(`://([^/ \t\r\n"']*)@`)

// withoutCredentials hides user and password in the URLs of a text.
func withoutCredentials(text string) string { return userinfo.ReplaceAllString(text, "://***@") }

// record creates the file for the output of an install.
func record(file string) (io.WriteCloser, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep the output of an install: %w", err)
	}
	return &limited{f: f, left: maxOutput}, nil
}

// limited is a file that drops what exceeds its limit.
type limited struct {
	f    *os.File
	left int
}

// Write takes everything, and drops what does not fit or cannot be written.
func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	_, _ = l.f.Write(p[:n]) // an install does not fail because its log does
	return len(p), nil
}

func (l *limited) Close() error { return l.f.Close() }

// group returns the attributes of every command: a process group of its own.
func group() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
