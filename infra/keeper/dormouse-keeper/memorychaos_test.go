package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// memoryFor is the environment variable that says how long
// TestMemoryIsThawedOnceWhateverIsKilled runs. make chaos sets it; without it the test is skipped.
const memoryFor = "DORMOUSE_TEST_MEMORY"

// Two servers that keep their memory, one with a list of hosts, are called while keepers,
// sentries, runners and dormouse are killed. The counts in the answers show that no image is
// thawed twice: no count comes twice, and no process answers after another one has answered.
func TestMemoryIsThawedOnceWhateverIsKilled(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv(memoryFor))
	if err != nil {
		t.Skip("make chaos runs it: ", err)
	}
	a := as{1000, ""}
	programs, data := built(t), a.folder(t)
	script := filepath.Join(data, "count.txt")
	must(t, os.WriteFile(script, []byte(nodeCounter), 0o644))
	servers, answers := map[string]any{}, map[string]*counts{}
	for name, box := range map[string]map[string]any{"kept": {"memory": "keep"}, "listed": {"memory": "keep", "network": []string{"api.github.com"}}} {
		servers[name] = map[string]any{"command": "node", "args": []string{script}, "x-dormouse": map[string]any{"idle_seconds": 1, "record": "off", "box": box}}
		answers[name] = &counts{seen: map[string]int{}}
	}
	killed, over := map[string]int{}, time.Now().Add(length)
	for life := 0; time.Now().Before(over); life++ {
		t.Run(fmt.Sprint("life ", life), func(t *testing.T) {
			log, call := a.hosts(t, programs, data, servers)
			ends := make(chan struct{})
			var callers sync.WaitGroup
			for name := range servers {
				callers.Go(func() {
					for {
						select {
						case <-ends:
							return
						case <-time.After(rand.N(3 * time.Second)): // some calls find it awake, some asleep
						}
						if out, err := call(name); err == nil {
							answers[name].take(t, name, out)
						}
					}
				})
			}
			for range 2 + rand.IntN(8) {
				time.Sleep(rand.N(1500 * time.Millisecond)) // a kill may come at any moment of a sleep or a wake
				if what, pid := victim(t, programs); pid != 0 {
					killed[what]++
					log.killed = log.killed || what == "dormouse"
					_ = syscall.Kill(pid, syscall.SIGKILL) // this fails if the process has ended
				}
				if log.killed {
					break
				}
			}
			close(ends)
			callers.Wait()
		})
	}
	for name, c := range answers {
		t.Logf("%s: %d answers of %d processes", name, c.answers, len(c.seen))
		if c.answers == 0 || c.longest < 2 {
			t.Errorf("%s: %d answers, at most %d of a process: nothing was shown", name, c.answers, c.longest)
		}
	}
	t.Logf("killed %v", killed)
}

// victim returns a process of the programs in a folder that is to be killed, 0 if there is none.
func victim(t *testing.T, programs string) (what string, pid int) {
	t.Helper()
	all := running(t, programs)
	if len(all) == 0 {
		return "", 0
	}
	pids := slices.Collect(maps.Keys(all))
	pid = pids[rand.IntN(len(pids))]
	return all[pid], pid
}

// running returns the names of the processes of the programs in a folder, calls left out.
func running(t *testing.T, programs string) map[int]string {
	t.Helper()
	all, err := os.ReadDir("/proc")
	must(t, err)
	found := map[int]string{}
	for _, p := range all {
		exe, _ := os.Readlink(filepath.Join("/proc", p.Name(), "exe")) // not each is a process
		text, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if filepath.Dir(exe) != programs || strings.Contains(string(text), "\x00call\x00") {
			continue
		}
		what, _, _ := strings.Cut(string(text), "\x00")
		pid, _ := strconv.Atoi(p.Name()) // a process has a number as its name
		found[pid] = filepath.Base(what)
	}
	return found
}

// counts has what one server has answered. Its calls come one after the other.
type counts struct {
	seen             map[string]int // the last count of each process
	last             string         // the process that answered last
	answers, longest int
}

var countAnswer = regexp.MustCompile(`process ([0-9a-f]{16}): count ([0-9]+)\.`)

// take checks an answer against the earlier ones.
func (c *counts) take(t *testing.T, server, out string) {
	t.Helper()
	m := countAnswer.FindStringSubmatch(out)
	if m == nil {
		t.Errorf("%s answered %q", server, out)
		return
	}
	count, _ := strconv.Atoi(m[2]) // the pattern has digits only
	before, known := c.seen[m[1]]
	if known && (c.last != m[1] || count <= before) {
		t.Errorf("%s: process %s counts %d, after it had counted %d and process %s had answered", server, m[1], count, before, c.last)
	}
	c.seen[m[1]], c.last = count, m[1]
	c.answers++
	c.longest = max(c.longest, count)
}
