package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Bounds of a command whose output is the value of a variable or header ("exec:" in the servers
// file).
const (
	commandWithin = 30 * time.Second // time limit of a command, which may ask the user for a password
	maxValue      = 16 << 10         // bytes of the output
	maxReason     = 300              // bytes of a command's last line on stderr that an error quotes
	// headersFor is how long a header's value is used before its command runs again. A server in a
	// box gets new values whenever the box wakes, but a remote server has no box.
	headersFor = 5 * time.Minute
)

// commands runs the commands that the servers file names, with the environment of this program.
type commands struct {
	environ environ
	folder  string // folder of the servers file, in which the commands run

	mu   sync.Mutex
	kept map[string]*keptValue // values of headers, by command
}

// keptValue is a header's value that a command gave. mu is held while the command runs.
type keptValue struct {
	mu    sync.Mutex
	value string
	until time.Time
}

func newCommands(e environ, servers string) *commands {
	return &commands{environ: e, folder: serversfile.FolderOf(servers), kept: map[string]*keptValue{}}
}

// filled returns t with a variable for each command of its server. The error is a [fleet.Refusal].
func (c *commands) filled(ctx context.Context, servers *serversfile.File, t fleet.Task) (fleet.Task, error) {
	s, ok := servers.Server(t.Server)
	if !ok || len(s.Commands) == 0 {
		return t, nil
	}
	t.Env = maps.Clone(t.Env)
	for _, name := range slices.Sorted(maps.Keys(s.Commands)) {
		// The command goes on if this caller goes away, because others may wait for the box.
		value, err := c.run(context.WithoutCancel(ctx), s.Commands[name])
		if err != nil {
			return t, fleet.Refusal{Why: fmt.Sprintf("env %q: %v", name, err)}
		}
		t.Env[serversfile.SecretVariable(name)] = value
	}
	return t, nil
}

// header returns what a command prints, and a function that forgets the value. It runs the command
// again only after the time headersFor, or once the value is forgotten.
func (c *commands) header(ctx context.Context, command string) (value string, forget func(), err error) {
	c.mu.Lock()
	k := c.kept[command]
	if k == nil {
		k = &keptValue{}
		c.kept[command] = k
	}
	c.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Now().Before(k.until) {
		return k.value, k.forgets(k.value), nil
	}
	value, err = c.run(ctx, command)
	if err == nil && strings.ContainsAny(value, "\r\n") {
		err = fmt.Errorf("the command %q prints several lines, which cannot be in a header", command)
	}
	if err == nil {
		k.value, k.until = value, time.Now().Add(headersFor)
	}
	return value, k.forgets(value), err
}

// forgets returns a function that forgets a value, unless a newer one has come.
func (k *keptValue) forgets(value string) func() {
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.value == value {
			k.until = time.Time{}
		}
	}
}

// run returns what a command prints, without a line break at its end. The error quotes the command
// and the last line of its stderr, but nothing of its output, which may be a secret.
func (c *commands) run(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandWithin)
	defer cancel()
	out, diag := &firstBytes{most: maxValue + 1}, &proc.Tail{}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command) //nolint:gosec // the owner of the servers file wrote it, and nobody else can
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.folder, c.environ, out, diag
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // processes that the command left behind may hold its output open
	err := cmd.Run()
	value := strings.TrimSuffix(string(out.bytes), "\n")
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("the command %q did not end within %s", command, commandWithin)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		stderr, _ := diag.Text(0)
		why := lastLine(stderr, value)
		if why != "" {
			why = ": " + why
		}
		return "", fmt.Errorf("the command %q failed (%w)%s", command, err, why)
	case value == "":
		return "", fmt.Errorf("the command %q prints nothing", command)
	case len(value) > maxValue || strings.Contains(value, "\x00"):
		return "", fmt.Errorf("the command %q prints more than %d KB, or a NUL character: a variable cannot hold it", command, maxValue>>10)
	}
	return value, nil
}

// firstBytes is a Writer that keeps the first bytes that are written to it.
type firstBytes struct {
	most  int
	bytes []byte
}

func (w *firstBytes) Write(p []byte) (int, error) {
	w.bytes = append(w.bytes, p[:min(len(p), w.most-len(w.bytes))]...)
	return len(p), nil
}

// lastLine returns the last line of a command's stderr, at most maxReason bytes of it. It masks each
// word of value, which is the command's output and may be a secret.
func lastLine(stderr, value string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := strings.ToValidUTF8(strings.TrimSpace(lines[len(lines)-1]), "")
	for part := range strings.FieldsSeq(value) {
		last = strings.ReplaceAll(last, part, "***")
	}
	return last[:min(len(last), maxReason)]
}
