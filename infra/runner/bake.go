package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// The memory that Class assumes, the longest start that it accepts in a box, and the
// limit of a measurement.
const (
	memoryOfOneCPU = 1769 // MB of a Lambda function with one vCPU
	runnerMemory   = 30   // MB that the runner itself holds
	startAtMost    = 1500 * time.Millisecond
	measureTime    = time.Minute
)

// BakeConfig says where servers are installed and for which image.
type BakeConfig struct {
	Cache   string // folder of installs on this machine
	Work    string // folder for temporary files
	Image   provision.BakeConfig
	Environ map[string]string // more variables for the installers
	Measure bool              // start the server once
	Log     *slog.Logger
}

// Measured is what one start of a server has used, up to its list of tools.
type Measured struct {
	CPU    time.Duration // of its processes
	Memory int           // MB, the most that its process held
}

// Class returns the smallest box for a server: its memory in MB, and the time that a start
// takes there. A process uses at most one processor. If the start takes too long in every
// box, Class returns the largest.
func (m Measured) Class() (memory int, start time.Duration) {
	for _, memory = range []int{512, 1024, 2048} {
		share := math.Min(1, float64(memory)/memoryOfOneCPU)
		start = time.Duration(float64(m.CPU) / share)
		if start <= startAtMost && m.Memory+runnerMemory <= memory*3/4 {
			return memory, start
		}
	}
	return memory, start
}

// Bake installs a server for an image. If c asks for it, Bake starts the server once, in a
// sandbox, with its variables. The result holds the measurement, which is zero without
// one. If the server is baked and only its start fails, Bake returns the name and an error.
func Bake(ctx context.Context, s serversfile.Server, c BakeConfig) (provision.Bake, Measured, error) {
	s, err := s.Resolve(os.LookupEnv)
	if err != nil {
		return provision.Bake{}, Measured{}, err
	}
	on := sandbox.Probe()
	environ := ownEnvironment()
	maps.Copy(environ, c.Environ)
	sandboxes := installSandboxes(s, c.Work, surroundings(s, environ), on)
	baked, err := provision.New(provision.Config{
		Base: c.Work, Cache: c.Cache, Confine: sandboxes, Compile: c.Measure, Environ: environ, Log: c.Log,
	}, provision.Server{Command: s.Command, Args: s.Args, Env: s.Env, Unset: s.Unset, Cwd: s.Cwd, Scripts: s.Box.InstallScripts}).Bake(ctx, c.Image)
	if err != nil || !c.Measure {
		return baked, Measured{}, err
	}
	m, err := measure(ctx, s, baked.Launch, c.Work, sandboxes)
	return baked, m, err
}

// measure starts a server in a sandbox, asks for its tools, and ends it.
func measure(ctx context.Context, s serversfile.Server, l provision.Launch, work string, sandboxes func(provision.Workshop) (provision.Sandbox, error)) (m Measured, err error) {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	folder, err := os.MkdirTemp(work, "measure-")
	if err != nil {
		return m, err
	}
	defer func() { _ = os.RemoveAll(folder) }() // the caller removes the rest
	if err := os.Chmod(folder, 0o755); err != nil {
		return m, err
	}
	var programs []string
	for _, name := range []string{"node", "python3"} {
		if file, err := exec.LookPath(name); err == nil {
			if real, err := filepath.EvalSymlinks(file); err == nil {
				programs = append(programs, real)
			}
		}
	}
	inside, err := sandboxes(provision.Workshop{Folder: folder, Read: l.Reads, Programs: programs})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, inside.End()) }()
	cmd := exec.CommandContext(ctx, l.Command, l.Args...)
	cmd.Dir = folder
	env := map[string]string{"PATH": strings.Join(append(l.Path, os.Getenv("PATH")), ":"), "LANG": os.Getenv("LANG")}
	for _, more := range []map[string]string{inside.Environment(), l.Env, s.Env} {
		maps.Copy(env, more)
	}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return m, err
	}
	if err := inside.Start(cmd); err != nil {
		return m, err
	}
	asked := listTools(in, out)
	m.Memory = residentMB(cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if asked != nil {
		return m, fmt.Errorf("it does not start here: %w", asked)
	}
	if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		m.CPU = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return m, nil
}

// listTools opens a session with a server and asks for its tools.
func listTools(to io.Writer, from io.Reader) error {
	lines := bufio.NewReader(from)
	for _, step := range []struct{ id, text string }{
		{"1", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + wire.V20250618 + `","capabilities":{},"clientInfo":{"name":"dormouse","version":"1"}}}`},
		{"", `{"jsonrpc":"2.0","method":"notifications/initialized"}`},
		{"2", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`},
	} {
		if _, err := io.WriteString(to, step.text+"\n"); err != nil {
			return fmt.Errorf("it ended before it read %q", step.text)
		}
		for answered := step.id == ""; !answered; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return errors.New("it ended without an answer")
			}
			var m struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
			}
			answered = json.Unmarshal(line, &m) == nil && m.Method == "" && string(m.ID) == step.id
		}
	}
	return nil
}

// residentMB returns the most memory that a process has held, in MB. It returns 0 on
// machines without /proc.
func residentMB(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	var kb int
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, _ = fmt.Sscanf(rest, "%d", &kb) // 0 if the kernel writes it otherwise
		}
	}
	return kb >> 10
}
