package local

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// startFleet makes this program the fleet: boxes are its child processes.
func (m *machine) startFleet(context.Context) error {
	if err := boxes.BecomeSubreaper(); err != nil {
		return err
	}
	m.boxes = boxes.NewPool(boxes.Config{
		Command: filepath.Join(m.cfg.Programs, "runner"), Dir: m.data, MaxTasks: maxBoxes,
		Env:      m.boxEnvironment(),
		Disabled: m.boxesOff(),
		OnStart:  m.boxStarted, OnStop: m.boxStopped,
		Output: func(t fleet.Status, line string) { m.output("box "+t.Server, line) },
		Logger: m.log,
	})
	m.closers = append(m.closers, m.boxes.Close)
	return m.serveUnix("fleet", m.boxes.Handler())
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
	// As for functions; see their environment.
	env["GOMAXPROCS"] = "1"
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
	m.recorder.Record(Event{Kind: BoxWake, Name: t.Server, PID: t.PID, Detail: t.Box})
}

// boxStopped tells the sweep function, as the rule for task events does on AWS: a
// box that said bye exits with 0 and needs nobody.
func (m *machine) boxStopped(t fleet.Status) {
	e := Event{Kind: BoxSleep, Name: t.Server, PID: t.PID, Duration: t.Stopped.Sub(t.Started)}
	if t.ExitCode != 0 {
		e.Kind, e.Detail = BoxCrash, fmt.Sprintf("exit code %d %s %s", t.ExitCode, t.Signal, t.Reason)
	}
	m.recorder.Record(e)
	m.tasks.add(t)
	m.ledger.stopped(t)
	if t.ExitCode != 0 {
		m.sweep(taskEvent(t))
	}
}

// startFunctions opens the pool of function processes. The functions get the
// environment of this program, because the servers file may refer to it.
func (m *machine) startFunctions(ctx context.Context) error {
	env, err := m.functionEnvironment()
	if err != nil {
		return err
	}
	if err := m.checkNatives(ctx, env); err != nil {
		return err
	}
	m.pool, err = NewPool(PoolConfig{
		Socket: m.socketFile("runtime"), SleepAfter: m.cfg.SleepAfter, Recorder: m.recorder, Logger: m.log,
		Output: m.functionOutput, Env: env, Functions: m.functions(),
	})
	if err != nil {
		return err
	}
	m.closers = append(m.closers, m.pool.Close)
	return nil
}

func (m *machine) functions() []FunctionConfig {
	concurrency := 1
	if m.cfg.Concurrent {
		concurrency = 16
	}
	hosts := func(address string) []string { return []string{"DORMOUSE_HOSTS=" + servedHosts(address)} }
	return []FunctionConfig{
		{Name: "http", Path: m.program("http"), Timeout: 15 * time.Minute, MaxInstances: 1000, Concurrency: concurrency, Env: hosts(m.cfg.Listen)},
		{Name: "socket", Path: m.program("socket"), Timeout: 29 * time.Second, MaxInstances: 1000, Concurrency: concurrency, Env: hosts(m.socketsAddress())},
		{Name: "relay", Path: m.program("relay"), Timeout: 29 * time.Second, MaxInstances: 200, Concurrency: concurrency},
		{Name: "sweep", Path: m.program("sweep"), Timeout: 5 * time.Minute, MaxInstances: 2},
	}
}

// functionEnvironment is what all functions are told, as template.yaml does on AWS.
func (m *machine) functionEnvironment() ([]string, error) {
	servers, err := filepath.Abs(m.cfg.Servers)
	if err != nil {
		return nil, err
	}
	env := m.inherited()
	for name, value := range m.passedOn() {
		env = append(env, name+"="+value)
	}
	return append(env,
		"GOMAXPROCS=1",
		"DORMOUSE_STORE="+m.store,
		"DORMOUSE_SERVERS="+servers,
		"DORMOUSE_ACCESS="+m.access(),
		"DORMOUSE_SECRET="+m.secret,
		snapshotsEnv+"="+m.snapshots(),
		"DORMOUSE_IDLE="+strconv.FormatFloat(m.cfg.Idle.Seconds(), 'f', -1, 64),
		"DORMOUSE_RELAY_URL=ws+unix:"+m.socketFile("relay")+":/"+relayStage,
		"DORMOUSE_RELAY_CONNECTIONS=http://local/"+relayStage,
		"DORMOUSE_SOCKET_CONNECTIONS=http://local/"+socketStage,
		"DORMOUSE_RUNTIME_SOCKET="+m.socketFile("runtime"),
		"DORMOUSE_CONNECTIONS_SOCKET="+m.socketFile("connections"),
		"DORMOUSE_INVOKE_SOCKET="+m.socketFile("invoke"),
		"DORMOUSE_SCHEDULES="+scheduleSettings(),
		"DORMOUSE_SCHEDULES_SOCKET="+m.socketFile("schedules"),
		"DORMOUSE_FLEET_SOCKET="+m.socketFile("fleet"),
	), nil
}

// scheduleSettings says where alarms are kept, as native.SchedulesConfig.
func scheduleSettings() string {
	return `{"group":"` + ScheduleGroup + `","target":"` + functionARN("http") + `","role":"arn:aws:iam::` + account + `:role/schedules"}`
}

const snapshotsEnv = "DORMOUSE_SNAPSHOTS"

// snapshots is where workspaces are kept: beside the rest of the data, if nothing else
// is said.
func (m *machine) snapshots() string {
	if said := m.environment(snapshotsEnv)[snapshotsEnv]; said != "" {
		return said
	}
	return "folder:" + filepath.Join(m.data, "snapshots")
}

// passedOn are the variables of this program that the functions get as they are:
// settings of sessions and boxes, which they read themselves, and the credentials of a store
// or a bucket on AWS. One on this machine needs none, and then the functions do not see them.
func (m *machine) passedOn() map[string]string {
	env := m.environment("DORMOUSE_SESSION_LIFE", "DORMOUSE_INIT_TIMEOUT", "DORMOUSE_EVENT_AGE", "DORMOUSE_HOLD", "DORMOUSE_TENANT_BOXES", "DORMOUSE_PROFILE")
	if strings.HasPrefix(m.store, sqlite) && !strings.HasPrefix(m.snapshots(), "s3:") {
		return env
	}
	keys := m.environment("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
	if len(keys) == 0 { // DynamoDB Local takes any
		keys = map[string]string{"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
	}
	maps.Copy(env, keys)
	return env
}

// servedHosts are the names an address is served under. On loopback only those of
// loopback, or a web page could reach it by a name of its own; somebody who opens
// it to a network has names nobody here knows.
func servedHosts(address string) string {
	if isLoopback(address) {
		return ""
	}
	return "*"
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// access is what the functions find in DORMOUSE_ACCESS. Whoever reaches loopback is
// the user of this machine; others have to say who they are, unless it was said
// that they need not.
func (m *machine) access() string {
	switch {
	case m.cfg.Access != "":
		return m.cfg.Access
	case isLoopback(m.cfg.Listen) && isLoopback(m.socketsAddress()):
		return AccessOpen
	default:
		return AccessKeys
	}
}

// inherited is the environment of this program without what is Dormouse's own.
func (m *machine) inherited() []string {
	var env []string
	for _, kv := range m.cfg.Environ {
		if !strings.HasPrefix(kv, "DORMOUSE_") && !strings.HasPrefix(kv, "AWS_") && !strings.HasPrefix(kv, "_") {
			env = append(env, kv)
		}
	}
	return env
}
