package runner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// TestEscapeRoom runs a hostile server with each setting that encloses, for each kind of
// runner. The server tries every way out that it knows (testdata/escape). The same program
// also runs without a sandbox, to show that each way works there.
func TestEscapeRoom(t *testing.T) {
	hosts := []escapeHost{{name: "user", uid: os.Getuid()}}
	if os.Getuid() == 0 {
		hosts = []escapeHost{{name: "root", own: true}, {name: "user", uid: 65534}, {name: "root, host_path rw", rw: true}}
	}
	base := escapeFolder(t)
	program := filepath.Join(base, "escape")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/escape")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, settings := range []string{
		`"profile":"default"`, `"profile":"offline_readonly"`, `"profile":"network_basic"`, `"profile":"network_extended"`,
		`"read_only_rootfs":true`, `"network":"off"`, guestServer,
	} {
		for _, h := range hosts {
			if h.rw && strings.Contains(settings, "offline_readonly") {
				continue // the profile refuses it
			}
			t.Run(settings+", "+h.name, func(t *testing.T) { h.escape(t, base, program, settings) })
		}
	}
}

// guestServer stands for the settings of a server without a profile that others may call.
const guestServer = ""

// escapeHost is a kind of runner.
type escapeHost struct {
	name string
	uid  int
	own  bool // the host gives each program a user of its own
	rw   bool // host_path_mode
}

// escapeFolder returns a folder outside of those for temporary files, because one of the
// profiles opens these.
func escapeFolder(t *testing.T) string {
	t.Helper()
	in, err := os.UserCacheDir()
	if os.Getuid() == 0 {
		in, err = "/var/cache", nil
	}
	commontest.OK(t, err)
	base := filepath.Join(in, "dormouse-escape-"+strconv.Itoa(os.Getpid()))
	commontest.OK(t, os.Mkdir(base, 0o755))
	t.Cleanup(func() {
		commontest.Check(t, os.RemoveAll(base))
	})
	return base
}

// escapeRole makes the test binary the runner of a hostile program.
const escapeRole = "RUNNER_TEST_ESCAPE"

// escapeJob is the task of such a runner, and escapeReport its report.
type escapeJob struct {
	Settings, Folder, Program string
	RW                        bool
}

type escapeReport struct {
	Policy        sandbox.Policy
	Control, Room string
	Hits          int64  // connections and datagrams that came from the sandbox
	Left          string // what the secret file has in it
	Secret        string
}

// escape runs the program for one setting, and judges its report.
func (h escapeHost) escape(t *testing.T, base, program, settings string) {
	entries, err := os.ReadDir(base)
	commontest.OK(t, err)
	folder := filepath.Join(base, strconv.Itoa(len(entries)))
	commontest.OK(t, os.Mkdir(folder, 0o755))
	commontest.OK(t, os.Chown(folder, h.uid, h.uid))
	job, err := json.Marshal(escapeJob{settings, folder, program, h.rw})
	commontest.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	secret := fmt.Sprintf("escape-secret-%016x", time.Now().UnixNano())
	cmd.Env = []string{escapeRole + "=" + string(job), "SECRET=" + secret, "PATH=" + os.Getenv("PATH"), "HOME=" + folder, "GORACE=atexit_sleep_ms=0"}
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uint32(h.uid), Gid: uint32(h.uid)}}
	out, err := cmd.Output()
	var r escapeReport
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, kind := range []string{"socket", "file", "memory", "process", "signal", "schedule"} {
		commontest.Contains(t, "nothing of kind", "open "+kind+" ", r.Control)
	}
	if !strings.Contains(r.Control, "leak file ") || !strings.Contains(r.Control, "leak process ") || !strings.Contains(r.Control, "leak memory ") {
		t.Errorf("the program does not find the secrets without a sandbox:\n%s", r.Control)
	}
	h.judge(t, r)
}

// judge fails the test if something was open that must not be.
func (h escapeHost) judge(t *testing.T, r escapeReport) {
	enclosed := !slices.Contains(r.Policy.Write, "/")
	counts := map[string]int{}
	for line := range strings.Lines(r.Room) {
		what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		kind, detail, _ := strings.Cut(rest, " ")
		switch {
		case what == "tried":
			counts[kind], _ = strconv.Atoi(detail)
		case kind == "family" && r.Policy.Sockets == sandbox.InternetSockets && (detail == "internet" || detail == "netlink/0"):
		case kind == "mode" && !h.own: // Landlock has no right for it; SECURITY.md says so
		case kind == "signal" && !h.own && sandbox.Probe().Landlock < 6:
		case (kind == "file" || kind == "system") && !enclosed && (what == "open" || !h.own): // it keeps the files of its user
		default:
			t.Errorf("out of the sandbox: %s", line)
		}
	}
	t.Log(counts)
	for _, kind := range []string{"socket", "pair", "family", "kernel", "privileges", "memory", "file", "system", "process", "signal", "schedule", "memfd"} {
		if counts[kind] == 0 {
			t.Errorf("nothing of kind %s was tried:\n%s", kind, r.Room)
		}
	}
	commontest.Equal(t, 0, r.Hits)
	if (enclosed || h.own) && (strings.Contains(r.Room, r.Secret) || r.Left != r.Secret) {
		t.Errorf("the secret file holds %q", r.Left)
	}
}

// escapeRunner is the runner. It has the secrets that a hostile program looks for.
func escapeRunner(text string) {
	var job escapeJob
	need(json.Unmarshal([]byte(text), &job))
	at := func(name ...string) string { return filepath.Join(append([]string{job.Folder}, name...)...) }
	for _, dir := range []string{"work", "host", "open", "theirs"} {
		need(os.Mkdir(at(dir), 0o755))
	}
	c := job.confiner(at("work"), at("host"))
	r := escapeReport{Secret: os.Getenv("SECRET")}
	// Make the same attempts without a sandbox first. They destroy some files, and what
	// they send may arrive late. So they get a prey of their own.
	decoy := newPrey(at("open"), r.Secret)
	r.Control = job.run(nil, at("open"), append(decoy.told("decoy"), "only=1", "pid="+strconv.Itoa(os.Getpid()))...)
	decoy.close()
	prey := newPrey(at("theirs"), r.Secret)
	defer prey.close()

	neighbour := job.neighbour(c, at("work", "neighbour"))
	defer neighbour.end()
	told := append(prey.told("secret"),
		"file="+at("work", "neighbour", "secret"), "folder="+at("work", "neighbour"), "folder="+at("work"), "folder="+at("theirs"),
		"pid="+strconv.Itoa(os.Getpid()), "pid="+neighbour.pid,
	)
	workspace := at("work", "hostile")
	if job.RW {
		workspace = at("host")
	}
	launch := provision.Launch{Command: job.Program, Cwd: workspace, Workspace: workspace}
	inside, err := c.sandboxFor("hostile", launch)
	need(err)
	r.Policy = c.policy(launch, "")
	if r.Policy.Sockets == sandbox.NoSockets {
		told = append(told, "tcp="+prey.tcp)
	}
	r.Room = job.run(inside, workspace, told...)
	left, err := os.ReadFile(prey.file("secret"))
	r.Left, r.Hits = string(left), prey.hits.Load()
	if err != nil {
		r.Left = err.Error()
	}
	need(json.NewEncoder(os.Stdout).Encode(r))
}

// need ends this program if there is an error.
func need(err error) {
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (j escapeJob) confiner(work, host string) *confiner {
	settings := j.Settings
	if j.RW && settings == guestServer {
		settings = `"profile":"none"`
	}
	if j.RW {
		settings += `,"host_path":"` + host + `","host_path_mode":"rw"`
	}
	text := `{"mcpServers":{"s":{"command":"` + j.Program + `","x-dormouse":{"box":{` + settings + `}}}}}`
	all, _, err := serversfile.Parse([]byte(text), "servers.json", func(string) (string, bool) { return "", false })
	need(err)
	server, _ := all.Server("s")
	if j.Settings == guestServer {
		server.Box.Guest, server.Box.ReadOnlyRootFS = true, true
	}
	c, err := newConfiner(server, work, map[string]string{"PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME")}, sandbox.Probe())
	need(err)
	return c
}

// run runs the hostile program to its end, in a sandbox or without one.
func (j escapeJob) run(inside *sandbox.Sandbox, own string, told ...string) string {
	var out bytes.Buffer
	cmd := &exec.Cmd{
		Path: j.Program, Args: append([]string{"escape", own}, told...), Env: []string{}, Dir: own, Stdout: &out, Stderr: &out,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	start := cmd.Start
	if inside != nil {
		start = func() error { return inside.Start(cmd) }
	}
	need(start())
	if err := cmd.Wait(); err != nil {
		need(fmt.Errorf("%w\n%s", err, out.String()))
	}
	return out.String()
}

// neighbour is another process of the same server, in a sandbox of its own.
type neighbour struct {
	cmd   *exec.Cmd
	stdin *os.File
	pid   string
}

func (j escapeJob) neighbour(c *confiner, workspace string) *neighbour {
	inside, err := c.sandboxFor("neighbour", provision.Launch{Command: j.Program, Workspace: workspace})
	need(err)
	in, stdin, err := os.Pipe()
	need(err)
	stdout, out, err := os.Pipe()
	need(err)
	if j.RW {
		need(os.Mkdir(workspace, 0o700))
	}
	cmd := &exec.Cmd{
		Path: j.Program, Args: []string{"escape", "hold"}, Env: []string{"SECRET=" + os.Getenv("SECRET")}, Dir: workspace,
		Stdin: in, Stdout: out, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	need(inside.Start(cmd))
	_, _ = in.Close(), out.Close()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	need(err)
	return &neighbour{cmd, stdin, strings.TrimSpace(line)}
}

func (n *neighbour) end() {
	_ = n.stdin.Close()
	_ = n.cmd.Wait()
}

// prey is the data and sockets of the runner that others must not reach.
type prey struct {
	folder  string
	tcp     string
	memory  int
	sockets []string
	open    []io.Closer
	hits    atomic.Int64
}

func newPrey(folder, secret string) *prey {
	p := &prey{folder: folder}
	for _, name := range []string{"secret", "decoy"} {
		need(os.WriteFile(p.file(name), []byte(secret), 0o600))
	}
	for _, network := range []string{"unix", "unixpacket", "unixgram"} {
		for _, name := range []string{filepath.Join(folder, network), "@escape-" + network + secret[len(secret)-16:]} {
			p.listen(network, name)
		}
	}
	p.listen("tcp", "127.0.0.1:0")
	var err error
	p.memory, err = unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o600|unix.IPC_CREAT)
	need(err)
	mem, err := unix.SysvShmAttach(p.memory, 0, 0)
	need(err)
	copy(mem, secret)
	need(unix.SysvShmDetach(mem))
	return p
}

func (p *prey) file(name string) string { return filepath.Join(p.folder, name) }

// listen counts connections and datagrams. Every user may connect to the path sockets.
func (p *prey) listen(network, address string) {
	if network == "unixgram" {
		conn, err := net.ListenUnixgram(network, &net.UnixAddr{Name: address, Net: network})
		need(err)
		p.open = append(p.open, conn)
		go func() {
			for buf := make([]byte, 16); ; p.hits.Add(1) {
				if _, _, err := conn.ReadFromUnix(buf); err != nil {
					return
				}
			}
		}()
	} else {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), network, address)
		need(err)
		p.open = append(p.open, l)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				p.hits.Add(1)
				_ = conn.Close()
			}
		}()
		if network == "tcp" {
			p.tcp = l.Addr().String()
			return
		}
	}
	p.sockets = append(p.sockets, address)
	if address[0] != '@' {
		need(os.Chmod(address, 0o777))
	}
}

// told returns the arguments that tell the hostile program about the prey.
func (p *prey) told(file string) []string {
	all := []string{"file=" + p.file(file), "memory=" + strconv.Itoa(p.memory)}
	for _, s := range p.sockets {
		all = append(all, "socket="+s)
	}
	for _, path := range []string{"/etc/shadow", "/etc/gshadow", "/etc/ssh/ssh_host_ed25519_key", "/root/.ssh/id_ed25519", "/root/.bashrc"} {
		all = append(all, "system="+path)
	}
	return all
}

func (p *prey) close() {
	_, _ = unix.SysvShmCtl(p.memory, unix.IPC_RMID, nil)
	for _, c := range p.open {
		_ = c.Close() // nobody needs it any more
	}
}
