//go:build e2e

package dormouse_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// rogues returns a machine that hosts the rogue server under some names, each with
// its x-dormouse.box and flags.
func rogues(t *testing.T, boxes map[string]map[string]any, flags ...string) *machine {
	t.Helper()
	program := rogue(t)
	file := map[string]any{}
	for name, box := range boxes {
		file[name] = map[string]any{
			"command": program, "args": append([]string{}, flags...),
			"env": map[string]string{"API_TOKEN": "s3cr3t-of-the-test"}, "x-dormouse": map[string]any{"box": box},
		}
	}
	return machineOf(t, file)
}

// marked lists the processes whose mark has this beginning. These are the processes of
// boxes that work below a folder, even if they have lost their parents or have another
// user.
func marked(t *testing.T, mark string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	commontest.OK(t, err)
	for _, file := range all {
		env, err := os.ReadFile(file)
		if err == nil && bytes.Contains(env, []byte("DORMOUSE_PROCESS="+mark)) {
			pids = append(pids, strings.Split(file, "/")[2])
		}
	}
	return pids
}

// ownCache gives the machine a cache of its own. It returns the folder in the cache where
// boxes work.
func (m *machine) ownCache() (work string) {
	m.t.Helper()
	cache, err := os.MkdirTemp(stdioFolder, "cache-")
	commontest.OK(m.t, err)
	commontest.OK(m.t, os.Chmod(cache, 0o755))
	m.env = append(m.env, "DORMOUSE_CACHE="+cache)
	return filepath.Join(cache, "work")
}

func TestE2EServerWithAProfileIsConfined(t *testing.T) {
	t.Parallel()
	m := rogues(t, map[string]map[string]any{
		"strict": {"profile": "default"}, "limits": {"memory_mb": 256}, "free": {},
	})
	secret := filepath.Join(stdioFolder, "somebody-elses")
	write(t, secret, "x")
	// The certificates that the machine trusts are good for the server, too.
	trusted := filepath.Join(stdioFolder, "trusted.pem")
	if err := os.WriteFile(trusted, []byte("x"), 0o644); err != nil { //nolint:gosec // as certificates are
		t.Fatal(err)
	}
	m.env = append(m.env, "SSL_CERT_FILE="+trusted, "https_proxy=http://127.0.0.1:9")
	m.ownCache()
	m.start(sleepy()...)
	address := strings.TrimPrefix(strings.Split(m.urls["free"], "/free")[0], "http://")

	c := m.session("strict")
	for _, try := range []struct{ tool, path, want string }{
		{"dial", address, "not supported"},
		{"write", "/tmp/rogue-was-here", "permission denied"},
		{"read", secret, "permission denied"},
		{"read", trusted, "done"},
		{"read", "/proc/" + strconv.Itoa(m.only("runner").pid) + "/environ", "permission denied"},
		{"write", "in-the-workspace", "done"},
	} {
		t.Run(try.tool, func(t *testing.T) {
			if got := c.text(try.tool, fmt.Sprintf(`{"path":%q}`, try.path)); !strings.Contains(got, try.want) {
				t.Errorf("strict: %s %s: %s, want %s", try.tool, try.path, got, try.want)
			}
		})
	}
	env := c.text("env", "")
	for _, set := range []string{"SSL_CERT_FILE=" + trusted, "https_proxy=http://127.0.0.1:9"} {
		if !strings.Contains(env, set) {
			t.Errorf("strict: environment of the server lacks %s:\n%s", set, env)
		}
	}
	for _, name := range []string{"DORMOUSE_TOKEN", "DORMOUSE_SERVER", "PIP_", "NPM_CONFIG"} {
		if strings.Contains(env, name) {
			t.Errorf("strict: environment of the server has %s:\n%s", name, env)
		}
	}

	commontest.EqualIn(t, "limits: dial", "done", m.session("limits").text("dial", fmt.Sprintf(`{"path":%q}`, address)))
	c = m.session("limits")
	// A Go program that gets no more memory does not always report that: its runtime may
	// fail first. Where Go maps over address space that it has reserved, some kernels refuse
	// only what it maps afterwards, so it may have the first GiB.
	var f failure
	err := errors.New("nothing was tried")
	for n := 0; n < 2 && err != nil; n++ {
		f, err = failureOf(c.outcome("eat", `{"mb":1024}`))
	}
	if err != nil || f.Data.Phase != "runtime" || f.Data.Stderr == "" && !f.Data.Starved {
		t.Errorf("limits: 1 GiB with 256 MiB allowed ended with %+v, %v", f, err)
	}
	f, err = failureOf(c.outcome("share", `{"mb":400}`))
	if err != nil || !f.Data.Starved || !strings.Contains(f.Message, "used more memory than memory_mb allows") {
		t.Errorf("limits: 400 MiB of shared memory with 256 MiB allowed ended with %+v, %v", f, err)
	}
	if got := c.text("pid", ""); got == "" {
		t.Error("limits: the session is gone with its process")
	}

	c = m.session("free")
	commontest.EqualIn(t, "a server that asks for nothing cannot read what its user can", "done", c.text("read", fmt.Sprintf(`{"path":%q}`, secret)))
}

func TestE2ELogsOfAProcessThatIsGone(t *testing.T) {
	t.Parallel()
	m := rogues(t, map[string]map[string]any{"one": {}, "other": {}}, "-stderr", "a key is s3cr3t-of-the-test\nand no more\n")
	m.start(sleepy()...)
	c := m.session("one")
	c.text("pid", "")
	logs := func(of string) string {
		out, err := m.command("logs", of).CombinedOutput()
		if err != nil {
			t.Errorf("dormouse logs %s: %v: %s", of, err, out)
		}
		return string(out)
	}
	m.eventually(patience, "the logs of a living process", func() bool { return strings.Contains(logs("one"), "and no more") })
	m.asleep()
	m.interrupt()
	for _, of := range []string{"one", c.session[:12]} {
		got := logs(of)
		for _, want := range []string{"a key is ***\nand no more\n", "session " + c.session, "started", "exited with code 0"} {
			if !strings.Contains(got, want) {
				t.Errorf("logs %s lacks %q:\n%s", of, want, got)
			}
		}
		if strings.Contains(got, "s3cr3t") || strings.Contains(got, "other") {
			t.Errorf("logs %s says too much:\n%s", of, got)
		}
	}
	if out, err := m.command("logs", "other").CombinedOutput(); err == nil || !strings.Contains(string(out), "is kept: it has not run lately") {
		t.Errorf("logs of a server that never ran: %v: %s", err, out)
	}
}

func TestE2EStartTellsAWaitingClientHowFarItIs(t *testing.T) {
	t.Parallel()
	m := rogues(t, map[string]map[string]any{"one": {"host_path": t.TempDir()}})
	m.start(sleepy()...)
	c := m.session("one")
	m.asleep()
	all, err := c.call("pid", "")
	commontest.OK(t, err)
	for _, msg := range all {
		if msg.Method == wire.NotifyProgress {
			if text, _ := wire.String(wire.Lookup(msg.Params, "message")); !strings.Contains(text, "workspace") {
				t.Errorf("progress is %s", msg.Raw)
			}
			return
		}
	}
	t.Errorf("no progress before the answer: %d messages", len(all))
}

// memoryOf returns a field of a process's memory in bytes: VmRSS for what it has, VmHWM for
// the most that it has had. It is 0 if the process has ended.
func memoryOf(pid int, field string) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // a process that has ended has no such file
	_, rest, _ := strings.Cut(string(status), field+":")
	var kib int
	_, _ = fmt.Sscan(rest, &kib) // the kernel wrote it
	return kib << 10
}

// maxRunner and maxHost are the largest memory in MiB of a runner, and of a dormouse with the
// boxes inside, whatever its servers do.
const maxRunner, maxHost = 160, 400

func TestE2ERogueServersHarmOnlyThemselves(t *testing.T) {
	t.Parallel()
	boxes := map[string]map[string]any{"plain": {}, "sealed": {"sealed": true}}
	if os.Getenv(functionsVariable) == "process" {
		delete(boxes, "sealed") // as on AWS, where no box has a seal
	}
	for name, box := range boxes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			harmOnlyThemselves(t, box)
		})
	}
}

func harmOnlyThemselves(t *testing.T, box map[string]any) {
	t.Helper()
	m := rogues(t, map[string]map[string]any{"rogue": box}, "-ignore-term")
	if box["sealed"] != nil {
		m.env = append(m.env, "PATH="+filepath.Dir(keeper(t))+":"+os.Getenv("PATH"))
	}
	work := m.ownCache()
	m.start("--idle", "10m") // a busy machine takes more than a minute for one flood
	good := m.session("rogue")
	began := good.text("began", "")
	runner := m.host().pid

	for _, flood := range []struct{ tool, arguments string }{
		{"flood", `{"bytes":1073741824}`},
		{"flood", `{"bytes":268435456,"line":true}`},
		{"flood-stderr", `{"bytes":268435456}`},
		{"twice", `{}`},
		{"leak", `{}`},
	} {
		t.Run(flood.tool, func(t *testing.T) {
			if _, err := m.session("rogue").call(flood.tool, flood.arguments); err != nil {
				t.Errorf("%s: %v", flood.tool, err)
			}
			if got := good.text("began", ""); got != began {
				t.Errorf("after %s the process of another session is that of %s, was of %s", flood.tool, got, began)
			}
		})
	}
	deaf := m.session("rogue")
	deaf.text("deaf", "")
	var all sync.WaitGroup
	for range 40 { // fills its pipe, then its queue
		all.Go(func() {
			s, err := deaf.post(deaf.request(deaf.id(), "pid", `{"path":"`+strings.Repeat("x", 1<<20)+`"}`))
			if err != nil {
				t.Error(err)
				return
			}
			s.close()
		})
	}
	all.Wait()
	if got := good.text("began", ""); got != began {
		t.Errorf("after deaf the process of another session is that of %s, was of %s", got, began)
	}
	most := memoryOf(runner, "VmHWM") >> 20
	t.Logf("the runner has had %d MiB", most)
	if limit := map[bool]int{true: maxRunner, false: maxHost}[m.programs]; most == 0 || most > limit {
		t.Errorf("the runner has had %d MiB, want at most %d", most, limit)
	}
	m.interrupt()
	if left := marked(t, work); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	m.leftFolders(work, 0)
}

// leftFolders checks how many box folders there are.
func (m *machine) leftFolders(work string, want int) {
	m.t.Helper()
	left, err := filepath.Glob(filepath.Join(work, "box-*"))
	if err != nil || len(left) != want {
		m.t.Errorf("folders of boxes: %v, %v, want %d", left, err, want)
	}
}
