// Command stdio is the MCP server (2025-11-25, stdio) of the end-to-end tests. Its
// tools show the process behind a session. It waits for files
// instead of times, so that a test decides when it goes on.
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
	"os"
	"sync"
	"time"
)

func main() {
	name := flag.String("name", "stdio", "name in serverInfo")
	calls := flag.String("calls", "", "`file` that gets a line for each tools/call, with its tag")
	flag.Parse()
	s := &server{name: *name, calls: *calls, running: map[string]context.CancelFunc{}, asked: map[string]chan json.RawMessage{}}
	s.serve(os.Stdin)
}

// server is one process: one client, its calls in parallel.
type server struct {
	name, calls string

	mu      sync.Mutex      // of stdout, too
	init    json.RawMessage // what initialize was given
	count   int
	running map[string]context.CancelFunc   // calls by id
	asked   map[string]chan json.RawMessage // questions to the client by id
}

// message is any JSON-RPC message. Ids and params keep their bytes.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

func (s *server) serve(in io.Reader) {
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		var m message
		if json.Unmarshal(line, &m) == nil {
			s.take(m, bytes.Clone(line))
		}
		if err != nil {
			return
		}
	}
}

func (s *server) take(m message, raw []byte) {
	switch m.Method {
	case "initialize":
		s.init = m.Params
		s.result(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":%q,"version":"1"}}`, s.name)
	case "ping", "logging/setLevel":
		s.result(m.ID, `{}`)
	case "tools/list":
		s.result(m.ID, `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`)
	case "server/discover", "prompts/list", "resources/list", "resources/templates/list":
		s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"not found"}}`, m.ID)
	case "tools/call":
		ctx, cancel := context.WithCancel(context.Background())
		s.mu.Lock()
		s.running[string(m.ID)] = cancel
		s.mu.Unlock()
		go s.call(ctx, m)
	case "notifications/cancelled":
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		_ = json.Unmarshal(m.Params, &p)
		s.mu.Lock()
		if cancel := s.running[string(p.RequestID)]; cancel != nil {
			cancel()
		}
		s.mu.Unlock()
	case "":
		s.mu.Lock()
		if answer := s.asked[string(m.ID)]; answer != nil {
			answer <- raw
			delete(s.asked, string(m.ID))
		}
		s.mu.Unlock()
	}
}

// arguments of the tools; each uses some.
type arguments struct {
	Text   json.RawMessage `json:"text"`   // a JSON string, given back as it was written
	Tag    string          `json:"tag"`    // goes into the file of calls
	Gate   string          `json:"gate"`   // file that has to be there before the tool goes on
	Before int             `json:"before"` // notifications/progress before the gate
	After  int             `json:"after"`  // and behind it
	Pause  int             `json:"pause"`  // milliseconds before each of them
	Method string          `json:"method"` // to ask the client
}

func (s *server) call(ctx context.Context, m message) {
	var p struct {
		Name      string    `json:"name"`
		Arguments arguments `json:"arguments"`
		Meta      struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		s.result(m.ID, `{"isError":true,"content":[]}`)
		return
	}
	a := p.Arguments
	note(s.calls, a.Tag)
	switch p.Name {
	case "echo":
		s.result(m.ID, `{"content":[{"type":"text","text":%s}]}`, a.Text)
	case "count":
		s.mu.Lock()
		s.count++
		count := s.count
		s.mu.Unlock()
		s.text(m.ID, fmt.Sprint(count))
	case "whoami":
		s.result(m.ID, `{"content":[],"structuredContent":{"pid":%d,"name":%q,"init":%s}}`, os.Getpid(), s.name, s.init)
	case "work":
		s.progress(p.Meta.Token, 1, a.Before, a.Pause)
		if err := await(ctx, a.Gate); err == nil {
			s.progress(p.Meta.Token, a.Before+1, a.Before+a.After, a.Pause)
			s.text(m.ID, "worked")
		}
	case "ask":
		s.text(m.ID, string(s.ask(a.Method)))
	}
}

// ask sends the client a request and returns its whole response.
func (s *server) ask(method string) json.RawMessage {
	params := map[string]string{
		"sampling/createMessage": `{"messages":[{"role":"user","content":{"type":"text","text":"what is it?"}}],"maxTokens":9}`,
		"elicitation/create":     `{"message":"which one?","requestedSchema":{"type":"object","properties":{"n":{"type":"number"}}}}`,
	}[method]
	answer := make(chan json.RawMessage, 1)
	s.mu.Lock()
	s.asked[`"s1"`] = answer
	s.mu.Unlock()
	s.say(`{"jsonrpc":"2.0","id":"s1","method":%q,"params":%s}`, method, params)
	return <-answer
}

func (s *server) progress(token json.RawMessage, first, last, pause int) {
	for n := first; n <= last && token != nil; n++ {
		<-time.After(time.Duration(pause) * time.Millisecond)
		s.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, token, n)
	}
}

func (s *server) text(id json.RawMessage, text string) {
	quoted, _ := json.Marshal(text) // a string
	s.result(id, `{"content":[{"type":"text","text":%s}]}`, quoted)
}

func (s *server) result(id json.RawMessage, format string, args ...any) {
	s.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, fmt.Sprintf(format, args...))
}

// say writes one message. If that fails, the client has ended this process.
func (s *server) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintf(os.Stdout, format+"\n", args...); err != nil {
		os.Exit(0)
	}
}

// note appends a line to a file. The test reads the file, so note ends the process if
// it cannot write.
func note(file, line string) {
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(70)
	}
}

// await waits until a file exists.
func await(ctx context.Context, file string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for file != "" && !exists(file) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return file != "" && err == nil
}
