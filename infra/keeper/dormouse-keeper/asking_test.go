package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

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
