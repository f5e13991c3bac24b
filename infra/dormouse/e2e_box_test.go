//go:build e2e

package dormouse_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
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
			"x-dormouse": map[string]any{"box": box},
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
	boxes := map[string]map[string]any{"plain": {}}
	if os.Getenv(functionsVariable) == "cold" { // building its kernel takes minutes, so only make nightly does
		boxes["sealed"] = map[string]any{"sealed": true}
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
		{"flood", `{"bytes":134217728}`},
		{"flood", `{"bytes":268435456,"line":true}`},
		{"flood-stderr", `{"bytes":134217728}`},
		{"twice", `{}`},
		{"leak", `{}`},
	} {
		_, err := m.session("rogue").call(flood.tool, flood.arguments)
		commontest.CheckIn(t, flood.tool, err)
		commontest.EqualIn(t, "after "+flood.tool+" the process of another session began", began, good.text("began", ""))
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
	commontest.EqualIn(t, "after deaf the process of another session began", began, good.text("began", ""))
	most := memoryOf(runner, "VmHWM") >> 20
	if limit := map[bool]int{true: maxRunner, false: maxHost}[m.programs]; most == 0 || most > limit {
		t.Errorf("the runner has had %d MiB, want at most %d", most, limit)
	}
	m.interrupt()
	if left := marked(t, work); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if left, err := filepath.Glob(filepath.Join(work, "box-*")); err != nil || len(left) > 0 {
		t.Errorf("folders of boxes are left: %v, %v", left, err)
	}
}
