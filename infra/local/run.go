package local

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// StoreFile is the name of the store in the data folder.
const StoreFile = "store.db"

// Config says what [Run] hosts and how. All fields but Concurrent and JSON are
// required.
type Config struct {
	Listen     string        // HOST:PORT of the endpoint; port 0 takes a free one
	Servers    string        // path of the servers file
	Data       string        // folder of the store, the ticket secret and the sockets
	SleepAfter time.Duration // an idle function process is stopped after this
	Idle       time.Duration // an idle box says bye after this, unless its server sets its own
	Concurrent bool          // a function process takes 16 invocations at once
	JSON       bool          // print events as JSON lines
	Programs   string        // folder of the built programs (http, relay, sweep, runner)
	Environ    []string      // as os.Environ: what ${VAR} in the servers file means
	Out        io.Writer     // events, and the lines to paste
	Log        io.Writer     // log lines of functions and boxes
}

// Run hosts the servers of a servers file on this machine until ctx ends. When it
// returns, no process that it started is left. One data folder is used by one Run
// at a time.
func Run(ctx context.Context, cfg Config) error {
	m := &machine{cfg: cfg, log: slog.New(slog.NewJSONHandler(cfg.Log, nil))}
	defer m.stop(context.WithoutCancel(ctx))
	for _, step := range []func(context.Context) error{
		m.readServers, m.openData, m.startFleet, m.startFunctions, m.startRelayAPI, m.startControl, m.startSweep, m.startEndpoint,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	m.announce()
	<-ctx.Done()
	return nil
}

// machine is one machine in the place of AWS. Its fields are set by the steps of
// Run, in their order.
type machine struct {
	cfg      Config
	log      *slog.Logger
	recorder *Recorder
	servers  *catalog.Catalog
	data     string // absolute
	sockets  string // folder of the unix sockets
	secret   string // hex
	lock     *os.File

	endpoint net.Listener
	relay    net.Listener
	pool     *Pool
	boxes    *boxes.Pool
	sockAPI  *WebSocketAPI
	closers  []func(context.Context) error // in the order of opening
}

func (m *machine) readServers(context.Context) error {
	environ := map[string]string{}
	for _, kv := range m.cfg.Environ {
		name, value, _ := strings.Cut(kv, "=")
		environ[name] = value
	}
	servers, warnings, err := catalog.Load(m.cfg.Servers, func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		_, _ = fmt.Fprintf(m.cfg.Log, "warning: %v\n", w)
	}
	m.servers = servers
	return nil
}

func (m *machine) openData(context.Context) (err error) {
	if m.data, err = filepath.Abs(m.cfg.Data); err != nil {
		return err
	}
	if err := os.MkdirAll(m.data, 0o700); err != nil {
		return err
	}
	if m.lock, err = lockFile(filepath.Join(m.data, "lock")); err != nil {
		return fmt.Errorf("%s is in use by another dormouse run; stop that one or name another folder with --data: %w", m.data, err)
	}
	if m.secret, err = secretFile(filepath.Join(m.data, "secret")); err != nil {
		return err
	}
	m.sockets, err = socketFolder(m.data)
	print := HumanPrinter(m.cfg.Out)
	if m.cfg.JSON {
		print = JSONPrinter(m.cfg.Out)
	}
	m.recorder = NewRecorder(print)
	return err
}

// socket is the path of one of the unix sockets.
func (m *machine) socket(name string) string { return filepath.Join(m.sockets, name+".sock") }

// startFleet makes this program the fleet: boxes are its child processes.
func (m *machine) startFleet(context.Context) error {
	if err := boxes.BecomeSubreaper(); err != nil {
		return err
	}
	m.boxes = boxes.NewPool(boxes.Config{
		Command: filepath.Join(m.cfg.Programs, "runner"), Dir: m.data, MaxTasks: maxBoxes,
		Env:     m.environment("PATH", "HOME", "TMPDIR", "LANG"),
		OnStart: m.boxStarted, OnStop: m.boxStopped,
		Output: func(t fleet.Status, line string) { m.output("box "+t.Server, line) },
		Logger: m.log,
	})
	m.closers = append(m.closers, m.boxes.Close)
	return m.serveUnix("fleet", m.boxes.Handler())
}

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
	if t.ExitCode != 0 {
		go m.sweep(taskEvent(t))
	}
}

// startFunctions opens the pool of function processes. The functions get the
// environment of this program, because the servers file may refer to it.
func (m *machine) startFunctions(ctx context.Context) error {
	var lc net.ListenConfig
	var err error
	if m.relay, err = lc.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	concurrency := 1
	if m.cfg.Concurrent {
		concurrency = 16
	}
	servers, err := filepath.Abs(m.cfg.Servers)
	if err != nil {
		return err
	}
	program := func(name string) string { return filepath.Join(m.cfg.Programs, name) }
	m.pool, err = NewPool(PoolConfig{
		Socket: m.socket("runtime"), SleepAfter: m.cfg.SleepAfter, Recorder: m.recorder, Logger: m.log,
		Output: m.output,
		Env: append(m.inherited(),
			"GOMAXPROCS=1",
			"DORMOUSE_STORE=sqlite:"+filepath.Join(m.data, StoreFile),
			"DORMOUSE_SERVERS="+servers,
			"DORMOUSE_SECRET="+m.secret,
			"DORMOUSE_HOSTS="+m.hosts(),
			"DORMOUSE_IDLE="+strconv.FormatFloat(m.cfg.Idle.Seconds(), 'f', -1, 64),
			"DORMOUSE_RELAY_URL=ws://"+m.relay.Addr().String()+"/"+relayStage,
			"DORMOUSE_RELAY_CONNECTIONS=http://local/"+relayStage,
			"DORMOUSE_RUNTIME_SOCKET="+m.socket("runtime"),
			"DORMOUSE_CONNECTIONS_SOCKET="+m.socket("connections"),
			"DORMOUSE_FLEET_SOCKET="+m.socket("fleet"),
		),
		Functions: []FunctionConfig{
			{Name: "http", Path: program("http"), Timeout: 15 * time.Minute, MaxInstances: 1000, Concurrency: concurrency},
			{Name: "relay", Path: program("relay"), Timeout: 29 * time.Second, MaxInstances: 200, Concurrency: concurrency},
			{Name: "sweep", Path: program("sweep"), Timeout: 5 * time.Minute, MaxInstances: 2},
		},
	})
	if err != nil {
		return err
	}
	m.closers = append(m.closers, m.pool.Close)
	return nil
}

// hosts are the names the endpoint is served under. On loopback only those of
// loopback, or a web page could reach it by a name of its own; somebody who opens
// it to a network has names nobody here knows.
func (m *machine) hosts() string {
	host, _, err := net.SplitHostPort(m.cfg.Listen)
	if ip := net.ParseIP(host); err == nil && (host == "localhost" || ip != nil && ip.IsLoopback()) {
		return ""
	}
	return "*"
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

const relayStage = "relay"

// startRelayAPI opens the WebSocket API that runners connect to.
func (m *machine) startRelayAPI(context.Context) error {
	var err error
	m.sockAPI, err = NewWebSocketAPI(WebSocketConfig{
		Name: "relay", Stage: relayStage, Function: "relay", Invoker: m.pool, DropDisconnect: true, Logger: m.log,
	})
	if err != nil {
		return err
	}
	m.closers = append(m.closers, m.sockAPI.Close)
	if err := m.serveUnix("connections", m.sockAPI.Connections()); err != nil {
		return err
	}
	m.serve(m.relay, m.sockAPI)
	return nil
}

func (m *machine) startEndpoint(ctx context.Context) error {
	api, err := NewRESTAPI(RESTConfig{Function: "http", Invoker: m.pool, Logger: m.log})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	if m.endpoint, err = lc.Listen(ctx, "tcp", m.cfg.Listen); err != nil {
		return fmt.Errorf("the endpoint cannot be opened; name another address with --listen: %w", err)
	}
	m.serve(m.endpoint, api)
	return nil
}

func (m *machine) serveUnix(name string, h http.Handler) error {
	l, err := listenUnix(m.socket(name))
	if err != nil {
		return fmt.Errorf("open the %s socket: %w", name, err)
	}
	m.serve(l, h)
	return nil
}

// serve runs an HTTP server until stop.
func (m *machine) serve(l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn)}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			m.log.Error("a server has stopped", "address", l.Addr().String(), "error", err)
		}
	}()
	m.closers = append(m.closers, func(context.Context) error { return s.Close() })
}

// stopTime bounds the whole end; boxes get the most of it, to say bye.
const stopTime = 20 * time.Second

// stop ends everything. New messages are refused first; then the boxes end, while
// the functions still take what they have to say; then the functions.
func (m *machine) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	if m.endpoint != nil {
		_ = m.endpoint.Close()
	}
	if m.boxes != nil {
		if err := m.boxes.Close(ctx); err != nil {
			m.log.Warn("boxes did not end in time", "error", err)
		}
	}
	for i := len(m.closers) - 1; i >= 0; i-- {
		if err := m.closers[i](ctx); err != nil && !errors.Is(err, net.ErrClosed) {
			m.log.Warn("not everything ended in time", "error", err)
		}
	}
	if m.sockets != "" {
		_ = os.RemoveAll(m.sockets)
	}
	if m.lock != nil {
		_ = m.lock.Close()
	}
}

// output passes a line of a function or a runner on. They write slog JSON.
func (m *machine) output(_, line string) { _, _ = fmt.Fprintln(m.cfg.Log, line) }

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// secretFile reads the ticket secret, and makes it the first time.
func secretFile(path string) (string, error) {
	secret, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		secret = []byte(newSecret())
		err = os.WriteFile(path, secret, 0o600)
	}
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(secret))
	if raw, err := hex.DecodeString(s); err != nil || len(raw) < 32 {
		return "", fmt.Errorf("%s does not hold 32 bytes in hexadecimal; delete it to have it made anew", path)
	}
	return s, nil
}
