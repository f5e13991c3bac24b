package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// startFleet makes this program the fleet: boxes are its child processes.
func (m *machine) startFleet(context.Context) error {
	if err := boxes.BecomeSubreaper(); err != nil {
		return err
	}
	if folder := m.getenv(locksEnv); folder != "" {
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			return fmt.Errorf("%s is %q, which is no folder: name one with locks of installs, or unset it", locksEnv, folder)
		}
	}
	m.boxes = boxes.NewPool(boxes.Config{
		Command: m.cfg.Runner[0], Args: m.cfg.Runner[1:], Dir: m.data, MaxTasks: maxBoxes,
		Env:      m.boxEnvironment(),
		Disabled: m.boxesOff(),
		OnStart:  m.boxStarted, OnStop: m.boxStopped,
		Output: func(t fleet.Status, line string) { m.output("box "+t.Server, line) },
		Logger: m.log,
	})
	m.closers = append(m.closers, m.boxes.Close)
	return nil
}

// boxesOff says whether DORMOUSE_BOXES is anything but "on", or nothing: what cannot
// be understood starts no servers.
func (m *machine) boxesOff() bool {
	switch m.environment("DORMOUSE_BOXES")["DORMOUSE_BOXES"] {
	case "", "on":
		return false
	default:
		m.log.Warn("boxes are switched off by DORMOUSE_BOXES: no stdio server is started")
		return true
	}
}

// boxEnvironment is what runners are told by this machine: where programs and the
// user's things are, settings of the runner, and how to reach package registries.
// Servers get none of it but PATH, HOME, TMPDIR and LANG.
func (m *machine) boxEnvironment() map[string]string {
	env := m.environment("PATH", "HOME", "TMPDIR", "LANG", "DORMOUSE_CACHE", "DORMOUSE_CACHE_AGE", "DORMOUSE_CACHE_MB", "DORMOUSE_BOX_PROCESSES", "DORMOUSE_PROFILE",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PYENV_ROOT")
	if folder := m.getenv(locksEnv); folder != "" {
		if path, err := filepath.Abs(folder); err == nil { // a runner starts in another folder
			env[locksEnv] = path
		}
	}
	// One more than the runner needs while a process starts, which blocks a processor.
	env["GOMAXPROCS"] = "2"
	env["DORMOUSE_LOGS"] = filepath.Join(m.data, LogFolder)
	if m.access() == AccessOpen && isLoopback(m.cfg.Listen) && isLoopback(m.socketsAddress()) {
		env["DORMOUSE_SHOW_OUTPUT"] = "on" // whoever calls may read the logs as well
	}
	for _, kv := range m.cfg.Environ {
		name, value, _ := strings.Cut(kv, "=")
		upper := strings.ToUpper(name)
		for _, prefix := range []string{"PIP_", "UV_", "NPM_CONFIG_"} {
			if strings.HasPrefix(upper, prefix) {
				env[name] = value
			}
		}
		switch upper {
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY":
			env[name] = value
		}
	}
	return env
}

// locksEnv names a folder of locks, made on another machine, that say what packages
// installs come to. Runners read it.
const locksEnv = "DORMOUSE_LOCKS"

// LogFolder is the folder in the data folder that holds what processes of servers
// said on stderr: SERVER/SESSION.NANOSECONDS.log, and .log.old for what was before.
const LogFolder = "logs"

// maxBoxes is how many boxes one machine runs at the same time.
const maxBoxes = 64

func (m *machine) environment(names ...string) map[string]string {
	env := map[string]string{}
	for _, kv := range m.cfg.Environ {
		name, value, _ := strings.Cut(kv, "=")
		for _, n := range names {
			if n == name {
				env[name] = value
			}
		}
	}
	return env
}

func (m *machine) boxStarted(t fleet.Status) {
	m.recorder.Record(journal.Event{Kind: journal.BoxWake, Name: t.Server, PID: t.PID, Detail: t.Box})
}

// boxStopped has the box swept, as the rule for task events does on AWS. A box that said
// bye exits with 0 and needs no sweep.
func (m *machine) boxStopped(t fleet.Status) {
	e := journal.Event{Kind: journal.BoxSleep, Name: t.Server, PID: t.PID, Duration: t.Stopped.Sub(t.Started)}
	if t.ExitCode != 0 {
		e.Kind, e.Detail = journal.BoxCrash, fmt.Sprintf("exit code %d %s %s", t.ExitCode, t.Signal, t.Reason)
	}
	m.recorder.Record(e)
	m.ledger.stopped(t)
	if t.ExitCode != 0 {
		m.functions.sweep(&t)
	}
}
