package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
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

// The servers count in memory only. The one of Node also gives its process a random name.
var (
	nodeCounter = nodeServer(`let n = 0
const name = require("crypto").randomBytes(8).toString("hex")
const look = () => "process " + name + ": count " + ++n + "."`)
	pythonCounter = pythonServer(`n = 0
def look():
    global n
    n += 1
    return "count %d." % n`)
)

// Servers of Node and Python go on counting over five sleeps and an end of dormouse run. Their
// secret is on no disk, and in nothing that a user may add to the report of a fault.
func TestMemoryLastsOverSleepsAndRestarts(t *testing.T) {
	a := as{1000, ""}
	programs, data := built(t), a.folder(t)
	const secret = "hunter2-hunter2-hunter2"
	servers := map[string]any{}
	for name, of := range map[string][2]string{"node": {"node", nodeCounter}, "python": {"/usr/bin/python3", pythonCounter}} {
		script := filepath.Join(data, name+".txt")
		must(t, os.WriteFile(script, []byte(of[1]), 0o644))
		servers[name] = map[string]any{
			"command": of[0], "args": []string{script}, "env": map[string]string{"TOKEN": "${SECRET}"},
			"x-dormouse": map[string]any{"idle_seconds": 1, "record": "off", "box": map[string]any{"memory": "keep"}},
		}
	}
	t.Setenv("SECRET", secret)
	count := 0
	for life := range 2 {
		t.Run(fmt.Sprint("life ", life), func(t *testing.T) {
			log, call := a.hosts(t, programs, data, servers)
			for n := range 3 {
				count++
				for name := range servers {
					if out, err := call(name); err != nil || !strings.Contains(out, fmt.Sprintf("count %d.", count)) {
						t.Errorf("%s, want count %d: %v: %s", name, count, err, out)
					}
				}
				for name := range servers {
					log.wait(t, " "+name+" asleep", n+1)
				}
			}
			for _, args := range []string{"doctor --json", "ps --json", "list --json", "logs node"} {
				cmd := a.command(filepath.Join(programs, "dormouse"), append(strings.Fields(args), "--data", filepath.Join(data, "state"))...)
				if out, _ := cmd.CombinedOutput(); len(out) == 0 || bytes.Contains(out, []byte(secret)) { // doctor fails where it finds a fault
					t.Errorf("dormouse %s has the secret, or says nothing: %s", args, out)
				}
			}
			log.mu.Lock()
			defer log.mu.Unlock()
			if strings.Contains(strings.Join(log.all, "\n"), secret) {
				t.Error("the log has the secret")
			}
		})
	}
	images := 0
	err := filepath.WalkDir(filepath.Join(data, "state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if strings.HasSuffix(path, ".memory") {
			images++
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(secret)) {
			err = errors.Join(err, fmt.Errorf("%s has the secret", path))
		}
		return err
	})
	must(t, err)
	equal(t, "images", len(servers), images)
}

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

// asker asks a human in each call, and says in the question which process asks.
const asker = `const name = require("crypto").randomBytes(8).toString("hex")
const calls = new Map()
const say = m => console.log(JSON.stringify({jsonrpc: "2.0", ...m}))
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const m = JSON.parse(line)
  if (m.method == "initialize") say({id: m.id, result: {protocolVersion: m.params.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: "n", version: "1"}}})
  else if (m.method == "tools/list") say({id: m.id, result: {tools: [{name: "ask", inputSchema: {type: "object"}}]}})
  else if (m.method == "tools/call") {
    calls.set("q" + m.id, m.id)
    say({id: "q" + m.id, method: "elicitation/create", params: {message: name, requestedSchema: {type: "object", properties: {}}}})
  } else if (m.method == "ping") say({id: m.id, result: {}})
  else if (calls.has(m.id)) {
    say({id: calls.get(m.id), result: {content: [{type: "text", text: name + " heard " + m.result.content.text.length}]}})
    calls.delete(m.id)
  }
})`

// While calls wait for humans their process is an image. The answers come from the same
// memory, each once, over many sleeps of many sessions. Then no image and no process is left.
// make chaos has more sessions sleep more often.
func TestCallsWaitForHumansWithoutAProcess(t *testing.T) {
	const calls, long = 64, 1 << 20
	sessions, sleeps := 4, 2
	if os.Getenv(memoryFor) != "" {
		sessions, sleeps = 20, 5
	}
	a := as{1000, ""}
	programs, data := built(t), a.folder(t)
	script := filepath.Join(data, "asker.txt")
	must(t, os.WriteFile(script, []byte(asker), 0o644))
	log, _ := a.hosts(t, programs, data, map[string]any{"asker": map[string]any{
		"command": "node", "args": []string{script},
		"x-dormouse": map[string]any{"idle_seconds": 1, "record": "off", "box": map[string]any{"memory": "keep"}},
	}})
	url := log.find(t, regexp.MustCompile(`http://\S+/asker/mcp`))
	images := func(want int) { // waits until there are so many
		t.Helper()
		until(func() bool {
			all, err := filepath.Glob(filepath.Join(data, "state", "snapshots", "*", "*.memory"))
			must(t, err)
			return len(all) == want
		})
	}
	all := make([]*session, sessions)
	for n := range all {
		all[n] = starts(t, url)
	}
	id := 0
	var megabytes []int // of the memory of dormouse, while all sleep
	for range sleeps {
		var asked sync.WaitGroup
		for n, s := range all {
			id += calls
			asked.Go(func() {
				s.asks(t, id)
				for c := 1; n == 0 && c < calls; c++ { // whose question it is can be seen if the others wait
					s.asks(t, id+c)
				}
			})
		}
		asked.Wait()
		images(sessions)
		for pid, what := range running(t, programs) {
			if what == "dormouse" {
				megabytes = append(megabytes, resident(t, pid))
			}
		}
		for _, s := range all {
			s.answers(t, long)
		}
	}
	for _, s := range all {
		s.ends(t)
	}
	images(0)
	until(func() bool { return len(running(t, programs)) == 1 }) // that of dormouse
	t.Logf("dormouse had %d MB while all slept", megabytes)
}

func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, pages int
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &pages)
	}
	must(t, err)
	return pages * os.Getpagesize() >> 20
}

// session is a session of a client that has users who can be asked.
type session struct {
	url, id string
	process string // that asked first
	mu      sync.Mutex
	waits   []waiting
}

// waiting is a call whose question came.
type waiting struct {
	question json.RawMessage // its id
	stream   *bufio.Reader   // goes on with the answer
	body     io.Closer
}

func starts(t *testing.T, url string) *session {
	t.Helper()
	s := &session{url: url}
	resp := s.posts(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}}`)
	s.id = resp.Header.Get("Mcp-Session-Id")
	_, err := io.Copy(io.Discard, resp.Body)
	if err != nil || s.id == "" || resp.Body.Close() != nil {
		t.Fatal(resp.Status, err)
	}
	s.takes(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return s
}

func (s *session) posts(t *testing.T, body string) *http.Response {
	resp, err := speaks(t.Context(), http.MethodPost, s.url, s.id, body)
	if err != nil {
		t.Error(err)
		return &http.Response{Body: http.NoBody}
	}
	return resp
}

// takes posts what has no answer.
func (s *session) takes(t *testing.T, body string) {
	resp := s.posts(t, body)
	equal(t, "status", http.StatusAccepted, resp.StatusCode)
	_ = resp.Body.Close() // there is nothing in it
}

// asks makes a call and waits for its question.
func (s *session) asks(t *testing.T, id int) {
	resp := s.posts(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"ask","arguments":{}}}`, id)) //nolint:bodyclose // answers closes it
	stream := bufio.NewReaderSize(resp.Body, 1<<16)
	var m struct {
		ID     json.RawMessage
		Params struct{ Message string }
	}
	next(t, stream, &m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = append(s.waits, waiting{m.ID, stream, resp.Body})
	if s.process == "" {
		s.process = m.Params.Message
	}
	equal(t, "the process that asked", s.process, m.Params.Message)
}

// answers answers all questions, the first with a text of some length, and reads the results.
func (s *session) answers(t *testing.T, length int) {
	t.Helper()
	for n, w := range s.waits {
		if n > 0 {
			length = n
		}
		s.takes(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"text":"%s"}}}`, w.question, strings.Repeat("x", length)))
		var m struct {
			Result struct{ Content []struct{ Text string } }
		}
		next(t, w.stream, &m)
		if want := fmt.Sprint(s.process, " heard ", length); len(m.Result.Content) != 1 || m.Result.Content[0].Text != want {
			t.Errorf("%+v, not %s", m, want)
		}
		if rest, err := io.ReadAll(w.stream); err != nil || bytes.Contains(rest, []byte("data: {")) {
			t.Errorf("behind the result came %q, %v", rest, err)
		}
		_ = w.body.Close() // it was read to its end
	}
	s.waits = nil
}

func (s *session) ends(t *testing.T) {
	t.Helper()
	resp, err := speaks(t.Context(), http.MethodDelete, s.url, s.id, "")
	if err != nil || resp.StatusCode >= 300 {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close() // there is nothing in it
}

// next reads the next message of a stream of events.
func next(t *testing.T, stream *bufio.Reader, into any) {
	for {
		line, err := stream.ReadBytes('\n')
		if err != nil {
			t.Errorf("the stream ended without a message: %v", err)
			return
		}
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && len(bytes.TrimSpace(data)) > 0 {
			if err := json.Unmarshal(data, into); err != nil {
				t.Errorf("%s: %v", data, err)
			}
			return
		}
	}
}
