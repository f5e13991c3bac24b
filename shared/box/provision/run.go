package provision

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
)

const (
	maxSaid   = 500     // characters of an installer's stderr in an error
	maxAnswer = 1 << 20 // bytes of a command's stdout that are read
	maxOutput = 4 << 20 // bytes of an install's output that are logged
)

// command is a program that is run to its end, in its own process group. When the program ends,
// all other processes of the group are killed.
type command struct {
	argv []string // the first is an absolute path
	dir  string
	env  []string
	log  *output // receives stdout and stderr, nil for none
	// start starts the program in a sandbox; nil means none.
	start func(*exec.Cmd) error
}

// commandError is the error of command.run for a program that was started but did not exit with
// code 0.
type commandError struct {
	code int    // -1 if the command did not exit by itself
	how  string // how it ended, such as "was killed by SIGKILL"
	said string // the end of the command's stderr
	more string // all of stderr that was kept
	hint string // advice, "" for none
	// lacks says that the disk is full, or which package or version the index does not have; ""
	// for neither. The error for the user begins with it.
	lacks string
}

func (e *commandError) Error() string { return fmt.Sprintf("%s: %s", e.how, e.said) }

// run executes the command and returns its stdout. When ctx ends, run kills the command. If the
// program was started, the error is a [*commandError].
func (c command) run(ctx context.Context) ([]byte, error) {
	child, err := proc.Start(proc.Command{Path: c.argv[0], Args: c.argv, Env: c.env, Dir: c.dir, Start: c.start}, proc.Grace{})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.argv[0], err)
	}
	defer child.Release()
	defer context.AfterFunc(ctx, child.Kill)()
	child.CloseStdin()
	var out head
	var said proc.Tail
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(io.MultiWriter(&out, c.log), child.Stdout()) }) // after an error, use what was read
	read.Go(func() { _, _ = io.Copy(io.MultiWriter(&said, c.log), child.Stderr()) })
	read.Wait()
	<-child.Exited()
	end, _ := child.Exit()
	if end.Code != nil && *end.Code == 0 {
		return out.data.Bytes(), nil
	}
	more, _ := said.Text(0)
	failed := &commandError{code: -1, how: end.String(), said: ending(more), more: more}
	if end.Code != nil {
		failed.code = *end.Code
	}
	return nil, failed
}

// head stores the first maxAnswer bytes that are written to it.
type head struct{ data bytes.Buffer }

// Write returns len(p) and never fails.
func (h *head) Write(p []byte) (int, error) {
	h.data.Write(p[:min(len(p), maxAnswer-h.data.Len())])
	return len(p), nil
}

// ending returns the last lines of an output, at most maxSaid characters, without credentials. If
// the last line is longer, ending returns the end of that line.
func ending(text string) string {
	all := []rune(strings.TrimSpace(withoutCredentials(strings.ToValidUTF8(text, ""))))
	cut := max(0, len(all)-maxSaid)
	text = string(all[cut:])
	if cut > 0 && all[cut-1] != '\n' {
		if _, rest, more := strings.Cut(text, "\n"); more {
			text = rest
		}
	}
	return strings.TrimSpace(text)
}

// userinfo matches the user and the password in the URLs of a text.
var userinfo = regexp.MustCompile(`://([^/ \t\r\n"']*)@`)

func withoutCredentials(text string) string { return userinfo.ReplaceAllString(text, "://***@") }

// output is the log file of an install, without what exceeds maxOutput.
type output struct {
	mu   sync.Mutex // one goroutine writes the command's stdout, and another one its stderr
	f    *os.File
	left int
}

// record creates the log file of an install.
func record(file string) (*output, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep the output of an install: %w", err)
	}
	return &output{f: f, left: maxOutput}, nil
}

// Write returns len(p) and never fails: what does not fit or cannot be written is dropped.
func (o *output) Write(p []byte) (int, error) {
	if o != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		n := min(len(p), o.left)
		o.left -= n
		_, _ = o.f.Write(p[:n]) // an error does not matter, this is only a log
	}
	return len(p), nil
}
