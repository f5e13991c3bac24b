// Command wake measures how long a call waits that wakes a box with the processor share
// of a small Lambda function, beside a plain start of the same server at the same share.
// make bench-wake runs it. It needs root on Linux, with the cpu controller of cgroup v1 or
// v2.
//
// Dormouse runs as it does on one machine, without a limit. Its fleet starts a script in
// the place of the runner, which stands in for Lambda: it enters a cgroup with a quota of
// MB/1769 of a processor (period 20 ms), empties the cache, and becomes the real runner.
// The clock starts when the script is in the cgroup, and ends when the client has the
// result of a tool. The time to the welcome ends when the host has answered the runner's
// hello. A plain start is the server alone in the same cgroup, with initialize and the
// same call over its pipes. Wakes and plain starts alternate, so that other load affects
// both. All files are in memory, because the disk of this machine says nothing about that
// of a box.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

func main() {
	s := suite{out: os.Stdout}
	flag.StringVar(&s.dormouse, "dormouse", "bin/dormouse", "the program")
	flag.StringVar(&s.runner, "runner", "bin/runner", "the program of boxes on AWS")
	flag.StringVar(&s.pkg, "package", "@modelcontextprotocol/server-everything", "the npm package of the server, with a tool echo")
	flag.IntVar(&s.rounds, "rounds", 30, "wakes and plain starts of each line")
	sizes := flag.String("sizes", "512,1024", "sizes of boxes in MB")
	flag.Parse()
	if err := s.run(context.Background(), strings.Split(*sizes, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "wake:", err)
		os.Exit(1)
	}
}

// memoryOfOneCPU is the size in MB of a Lambda function that has one processor.
const memoryOfOneCPU = 1769

type suite struct {
	dormouse, runner, pkg string
	rounds                int
	folder                string // of this run
	out                   io.Writer
}

func (s *suite) run(ctx context.Context, sizes []string) (err error) {
	for _, program := range []*string{&s.dormouse, &s.runner} {
		if *program, err = filepath.Abs(*program); err != nil {
			return err
		}
	}
	if s.folder, err = os.MkdirTemp("/dev/shm", "wake-"); err != nil {
		return err
	}
	defer func() { // parts of it cannot be written, which stops no root
		err = errors.Join(err, os.RemoveAll(s.folder))
	}()
	// The host and the client have no quota, and come before other load.
	host, err := limit(fmt.Sprintf("wake-host-%d", os.Getpid()), 0)
	if err != nil {
		return err
	}
	defer host.remove()
	if err := host.take(os.Getpid()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cgroup{filepath.Dir(host.folder)}.take(os.Getpid())) }()
	servers := fmt.Sprintf(`{"mcpServers": {"s": {"command": "npx", "args": ["-y", %q], "x-dormouse": {"idle_seconds": 1}}}}`, s.pkg)
	if err := os.WriteFile(s.path("servers.json"), []byte(servers), 0o600); err != nil {
		return err
	}
	bake := exec.CommandContext(ctx, s.dormouse, "image", "--servers", s.path("servers.json"))
	bake.Dir = s.folder
	bake.Stdout, bake.Stderr = s.out, os.Stderr
	if err := bake.Run(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(s.out, "\n| box | install | welcome: median, p95 | wake: median, p95 | plain start: median, p95 | wake ÷ plain | wake − plain |\n|---|---|---|---|---|---|---|\n")
	for _, size := range sizes {
		mb, err := strconv.Atoi(size)
		if err != nil {
			return err
		}
		for _, kind := range []string{"baked", "kept"} {
			if err := s.line(ctx, mb, kind); err != nil {
				return fmt.Errorf("%d MB, %s: %w", mb, kind, err)
			}
		}
	}
	return nil
}

func (s *suite) path(name string) string { return filepath.Join(s.folder, name) }

// line measures one size with one kind of install, and prints its line of the table.
func (s *suite) line(ctx context.Context, mb int, kind string) error {
	group, err := limit(fmt.Sprintf("wake-%d-%d-%s", os.Getpid(), mb, kind), float64(mb)/memoryOfOneCPU)
	if err != nil {
		return err
	}
	defer group.remove()
	cache := s.path("cache")
	env := "DORMOUSE_CACHE=" + cache
	if kind == "baked" {
		env += " DORMOUSE_BAKED=" + s.path("bin/baked")
	} else {
		env += " DORMOUSE_INSTALLS=folder:" + s.path("kept")
	}
	stand := fmt.Sprintf("#!/bin/bash\nrm -rf %s\n%s\ndate +%%s%%N >%s\necho $$ >%s\nexec env %s %s 2>%s\n", cache, group.enter(), s.path("invoked"), s.path("pid"), env, s.runner, s.path("log"))
	if err := os.WriteFile(s.path("box"), []byte(stand), 0o700); err != nil { //nolint:gosec // it is a program
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	address, ended := make(chan string, 1), make(chan error, 1)
	data := s.path(fmt.Sprintf("data-%d-%s", mb, kind))
	go func() {
		ended <- local.Run(ctx, local.Config{
			Listen: "127.0.0.1:0", Sockets: "127.0.0.1:0", Servers: s.path("servers.json"), Data: data, Access: local.AccessOpen,
			Idle: time.Second, Runner: []string{s.path("box")}, Environ: os.Environ(), Log: io.Discard,
			Ready: func(url string) { address <- url },
		})
	}()
	var c client
	select {
	case err := <-ended:
		return errors.Join(err, errors.New("dormouse ended"))
	case url := <-address:
		c = client{url: url + "/s/mcp"}
	}
	m, err := s.measure(ctx, &c, group)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	w, p := at(m.wakes, 0.5), at(m.plain, 0.5)
	_, err = fmt.Fprintf(s.out, "| %d MB | %s | %d, %d ms | %d, %d ms | %d, %d ms | %.2f | %d ms |\n", mb, kind, at(m.welcomes, 0.5).Milliseconds(), at(m.welcomes, 0.95).Milliseconds(), w.Milliseconds(), at(m.wakes, 0.95).Milliseconds(),
		p.Milliseconds(), at(m.plain, 0.95).Milliseconds(), float64(w)/float64(p), (w - p).Milliseconds())
	return err
}

// measured has the times of one line.
type measured struct {
	welcomes []time.Duration
	wakes    []time.Duration
	plain    []time.Duration // starts of the server alone
}

// measure alternates wakes and plain starts. The first round, in which the box may install,
// does not count.
func (s *suite) measure(ctx context.Context, c *client, group cgroup) (m measured, err error) {
	if err := c.open(ctx); err != nil {
		return m, err
	}
	for i := range s.rounds + 1 {
		if err := s.asleep(ctx); err != nil {
			return m, err
		}
		welcome, wake, err := s.wake(ctx, c)
		if err != nil {
			return m, err
		}
		if err := s.asleep(ctx); err != nil {
			return m, err
		}
		plain, err := s.start(ctx, group)
		if err != nil {
			return m, err
		}
		if i > 0 {
			m.welcomes = append(m.welcomes, welcome)
			m.wakes, m.plain = append(m.wakes, wake), append(m.plain, plain)
		}
	}
	return m, nil
}

const echo = `{"name":"echo","arguments":{"message":"m"}}`

// wake calls a tool of a box that is asleep. It returns the times from the start of its
// runner to the host's welcome, and to the result.
func (s *suite) wake(ctx context.Context, c *client) (welcome, wake time.Duration, err error) {
	if err := c.call(ctx, "tools/call", echo); err != nil {
		return 0, 0, err
	}
	now := time.Now()
	text, err := os.ReadFile(s.path("invoked"))
	if err != nil {
		return 0, 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	begun := time.Unix(0, ns)
	if err != nil {
		return 0, 0, err
	}
	welcomed, err := s.welcomed()
	return welcomed.Sub(begun), now.Sub(begun), err
}

// welcomed returns when the host has welcomed the runner, as the runner's log says.
func (s *suite) welcomed() (time.Time, error) {
	text, err := os.ReadFile(s.path("log"))
	if err != nil {
		return time.Time{}, err
	}
	for line := range bytes.Lines(text) {
		var l struct {
			Time time.Time `json:"time"`
			Msg  string    `json:"msg"`
		}
		if json.Unmarshal(line, &l) == nil && l.Msg == "welcomed by the host" {
			return l.Time, nil
		}
	}
	return time.Time{}, errors.New("the runner's log has no welcome")
}

// asleep waits until the runner has ended.
func (s *suite) asleep(ctx context.Context) error {
	pid, err := os.ReadFile(s.path("pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // no box was started yet
	}
	for err == nil {
		if _, gone := os.Stat("/proc/" + strings.TrimSpace(string(pid))); gone != nil {
			break
		}
		err = pause(ctx, 20*time.Millisecond)
	}
	return errors.Join(err, pause(ctx, 200*time.Millisecond)) // the fleet notices it
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// start starts the server alone in the cgroup, and returns the time to the result of a
// tool.
func (s *suite) start(ctx context.Context, group cgroup) (time.Duration, error) {
	programs, err := filepath.Glob(s.path("baked/*/node_modules/.bin/mcp-server-*"))
	if err != nil || len(programs) != 1 {
		return 0, fmt.Errorf("programs %v, %w", programs, err)
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", group.enter()+"; date +%s%N >&2; exec "+programs[0])
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	said, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3, cmd.Start()); err != nil {
		return 0, err
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		return 0, err
	}
	begun, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewReader(out)
	for _, m := range []string{initialize, initialized, fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":%s}`, echo)} {
		if _, err := io.WriteString(in, m+"\n"); err != nil {
			return 0, err
		}
		for answered := m == initialized; !answered; {
			text, err := lines.ReadBytes('\n')
			if err != nil {
				return 0, err
			}
			answered = isAnswer(text)
		}
	}
	return time.Since(time.Unix(0, begun)), nil
}

const (
	initialize  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"wake","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// isAnswer reports whether a message is a response with a result.
func isAnswer(text []byte) bool {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
	}
	return json.Unmarshal(text, &m) == nil && m.ID != nil && m.Result != nil
}

// client has one session over Streamable HTTP.
type client struct{ url, session string }

func (c *client) open(ctx context.Context) error {
	if err := c.send(ctx, initialize, true); err != nil {
		return err
	}
	return c.send(ctx, initialized, false)
}

func (c *client) call(ctx context.Context, method, params string) error {
	return c.send(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, time.Now().UnixNano(), method, params), true)
}

// send posts a message, and reads until there is a result if one is wanted.
func (c *client) send(ctx context.Context, message string, result bool) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(message))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18", "Mcp-Session-Id": c.session} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only read
	if id := answer.Header.Get("Mcp-Session-Id"); id != "" {
		c.session = id
	}
	var seen []byte
	lines := bufio.NewReader(answer.Body)
	for result {
		line, err := lines.ReadBytes('\n')
		if isAnswer(bytes.TrimPrefix(line, []byte("data: "))) {
			return nil
		}
		if seen = append(seen, line...); err != nil {
			return fmt.Errorf("status %d and no result: %s", answer.StatusCode, seen)
		}
	}
	return nil
}

// at returns a quantile.
func at(times []time.Duration, q float64) time.Duration {
	all := slices.Sorted(slices.Values(times))
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// cgroup is a cgroup that limits its processes to a share of a processor.
type cgroup struct{ folder string }

// limit makes a cgroup; a share of 0 is no limit. The kernel prefers its processes to
// others, so that they get their share on a machine with other load.
func limit(name string, share float64) (cgroup, error) {
	const period = 20_000 // µs
	quota, most := "-1", "max"
	if share > 0 {
		quota = strconv.Itoa(int(share * period))
		most = quota
	}
	g, files := cgroup{"/sys/fs/cgroup/cpu/" + name}, map[string]string{"cpu.cfs_period_us": strconv.Itoa(period), "cpu.cfs_quota_us": quota, "cpu.shares": "100000"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		g, files = cgroup{"/sys/fs/cgroup/" + name}, map[string]string{"cpu.max": most + " " + strconv.Itoa(period), "cpu.weight": "10000"}
	}
	err := os.Mkdir(g.folder, 0o755)
	for _, file := range slices.Sorted(maps.Keys(files)) { // the period comes before the quota
		if err == nil {
			err = os.WriteFile(filepath.Join(g.folder, file), []byte(files[file]), 0o600)
		}
	}
	if err != nil {
		return g, fmt.Errorf("make a cgroup with a quota of the processor, as root: %w", err)
	}
	return g, nil
}

// enter returns a shell command that moves the shell into the cgroup.
func (g cgroup) enter() string { return "echo $$ >" + g.processes() }

func (g cgroup) processes() string { return filepath.Join(g.folder, "cgroup.procs") }

// take moves a process into the cgroup.
func (g cgroup) take(pid int) error {
	return os.WriteFile(g.processes(), []byte(strconv.Itoa(pid)), 0o600)
}

// remove removes the cgroup, which is empty once its processes have ended.
func (g cgroup) remove() {
	for range 50 {
		if os.Remove(g.folder) == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
