// Command tasks is a stdio server of the legacy era with the tools that the suite's
// scenarios about tasks call. It does not know the extension for tasks: its tools take
// their time, and ask in the middle of a call. It is written without an SDK, because no
// SDK for Go has the field execution.taskSupport.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// before is how long a tool works before it fails or asks: longer than a host may wait until it
// makes a task of the call.
const before = 3 * time.Second

type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

type server struct {
	mu      sync.Mutex
	asked   int
	answers map[string]chan json.RawMessage // by the id of the question
}

func main() {
	s := &server{answers: map[string]chan json.RawMessage{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
			Result json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		switch {
		case m.Method == "":
			s.answered(string(m.ID), m.Result)
		case m.ID != nil:
			go s.serve(m.ID, m.Method, m.Params)
		}
	}
}

func (s *server) write(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Version = "2.0"
	if err := json.NewEncoder(os.Stdout).Encode(m); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (s *server) serve(id json.RawMessage, method string, params json.RawMessage) {
	switch method {
	case "initialize":
		s.write(message{ID: id, Result: map[string]any{
			"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": "tasks", "version": "1.0.0"},
		}})
	case "ping":
		s.write(message{ID: id, Result: map[string]any{}})
	case "tools/list":
		s.write(message{ID: id, Result: map[string]any{"tools": tools()}})
	case "tools/call":
		var call struct {
			Name      string
			Arguments map[string]any
		}
		if err := json.Unmarshal(params, &call); err != nil {
			s.fail(id, -32602, err.Error())
			return
		}
		s.call(id, call.Name, call.Arguments)
	default:
		s.fail(id, -32601, "there is no "+method)
	}
}

// tools returns all tools, with their execution.taskSupport.
func tools() []map[string]any {
	var all []map[string]any
	for support, names := range map[string][]string{
		"":         {"greet"},
		"optional": {"slow_compute", "protocol_error_job", "confirm_delete", "multi_input"},
		"required": {"failing_job", "test_tool_with_task"},
	} {
		for _, name := range names {
			tool := map[string]any{"name": name, "description": "For the scenarios that call it.", "inputSchema": map[string]any{"type": "object"}}
			if support != "" {
				tool["execution"] = map[string]any{"taskSupport": support}
			}
			all = append(all, tool)
		}
	}
	return all
}

func (s *server) call(id json.RawMessage, name string, arguments map[string]any) {
	switch name {
	case "greet":
		s.say(id, fmt.Sprintf("Hello, %v!", arguments["name"]), false)
	case "slow_compute":
		seconds, _ := arguments["seconds"].(float64)
		<-time.After(time.Duration(seconds * float64(time.Second)))
		s.say(id, fmt.Sprintf("%v: computed.", arguments["label"]), false)
	case "failing_job":
		<-time.After(before)
		s.say(id, "The job failed, as it should.", true)
	case "protocol_error_job":
		<-time.After(before)
		s.fail(id, -32603, "the job broke")
	case "confirm_delete":
		<-time.After(before)
		s.say(id, "Confirmed: "+<-s.ask("confirm"), false)
	case "multi_input":
		<-time.After(before)
		first, second := s.ask("name"), s.ask("confirm")
		s.say(id, "Both: "+<-first+<-second, false)
	case "test_tool_with_task":
		answer := <-s.ask("user_name")
		<-time.After(before)
		s.say(id, "You are "+answer, false)
	default:
		s.fail(id, -32602, "there is no tool "+name)
	}
}

func (s *server) say(id json.RawMessage, text string, failed bool) {
	s.write(message{ID: id, Result: map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}, "isError": failed}})
}

func (s *server) fail(id json.RawMessage, code int, why string) {
	s.write(message{ID: id, Error: map[string]any{"code": code, "message": why}})
}

// ask asks the client for a field. The channel gets the client's answer as JSON.
func (s *server) ask(field string) <-chan string {
	s.mu.Lock()
	s.asked++
	id := s.asked
	raw := make(chan json.RawMessage, 1)
	s.answers[strconv.Itoa(id)] = raw
	s.mu.Unlock()
	params, err := json.Marshal(map[string]any{
		"message": "Please give " + field,
		"requestedSchema": map[string]any{
			"type": "object", "properties": map[string]any{field: map[string]any{"type": "string"}},
		},
	})
	if err != nil {
		panic(err)
	}
	s.write(message{ID: json.RawMessage(strconv.Itoa(id)), Method: "elicitation/create", Params: params})
	answer := make(chan string, 1)
	go func() { answer <- string(<-raw) }()
	return answer
}

func (s *server) answered(id string, result json.RawMessage) {
	s.mu.Lock()
	waits := s.answers[id]
	delete(s.answers, id)
	s.mu.Unlock()
	if waits != nil {
		waits <- result
	}
}
