// Command rogue is an MCP server (2025-11-25, stdio) that misbehaves. Its tools leak
// processes, flood their outputs, break rules and try to reach what they must not.
// Each tool returns the outcome.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ignore := flag.Bool("ignore-term", false, "ignore SIGTERM and the end of stdin")
	stderr := flag.String("stderr", "", "text to write to stderr first")
	flag.Parse()
	fmt.Fprint(os.Stderr, *stderr)
	if *ignore {
		signal.Ignore(syscall.SIGTERM)
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		take(line)
	}
	if *ignore {
		forever()
	}
}

func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

type arguments struct {
	Bytes int    `json:"bytes"`
	MB    int    `json:"mb"`
	Path  string `json:"path"`
	Line  bool   `json:"line"` // all in one line
}

func take(line []byte) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name      string    `json:"name"`
			Arguments arguments `json:"arguments"`
		} `json:"params"`
	}
	if json.Unmarshal(line, &m) != nil {
		return
	}
	switch {
	case m.Method == "initialize":
		result(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"rogue","version":"1"}}`)
	case m.Method == "tools/call":
		call(m.ID, m.Params.Name, m.Params.Arguments)
	case m.ID != nil:
		result(m.ID, `{}`)
	}
}

func call(id json.RawMessage, tool string, a arguments) {
	switch tool {
	case "pid":
		text(id, fmt.Sprint(os.Getpid()))
	case "leak":
		leak()
		text(id, "leaked")
	case "flood":
		flood(os.Stdout, a)
		text(id, "flooded")
	case "flood-stderr":
		flood(os.Stderr, a)
		text(id, "flooded")
	case "deaf":
		text(id, "deaf")
		forever()
	case "twice":
		text(id, "once")
		text(id, "twice")
		say(`{"jsonrpc":"2.0","id":987654321,"result":{}}`)
	case "dial":
		text(id, outcome(dial(a.Path)))
	case "write":
		text(id, outcome(os.WriteFile(a.Path, []byte("x"), 0o600)))
	case "read":
		_, err := os.ReadFile(a.Path)
		text(id, outcome(err))
	case "eat":
		eaten := bytes.Repeat([]byte("x"), a.MB<<20)
		text(id, fmt.Sprint(len(eaten)))
	case "env":
		text(id, strings.Join(os.Environ(), "\n"))
	case "cwd":
		dir, err := os.Getwd()
		text(id, dir+outcome(err))
	}
}

func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

func dial(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// leak leaves child processes: in the process group, in sessions of their own, and
// one whose parent has ended.
func leak() {
	for _, script := range []string{"sleep 3600", "sleep 3600 & sleep 3600"} {
		for _, away := range []bool{false, true} {
			c := exec.CommandContext(context.Background(), "/bin/sh", "-c", script)
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: away}
			if err := c.Start(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	_ = exec.CommandContext(context.Background(), "/bin/sh", "-c", "sleep 3600 >/dev/null 2>&1 &").Run()
}

// flood writes lines that are no messages, or one long line.
func flood(to *os.File, a arguments) {
	part := bytes.Repeat([]byte("flood "), 10<<10)
	if !a.Line {
		part[len(part)-1] = '\n'
	}
	for n := 0; n < a.Bytes; n += len(part) {
		if _, err := to.Write(part); err != nil {
			os.Exit(1)
		}
	}
	_, _ = to.WriteString("\n") // the next write tells
}

func text(id json.RawMessage, s string) {
	quoted, _ := json.Marshal(s) // a string
	result(id, `{"content":[{"type":"text","text":`+string(quoted)+`}]}`)
}

func result(id json.RawMessage, result string) {
	say(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + result + `}`)
}

func say(line string) {
	if _, err := os.Stdout.WriteString(line + "\n"); err != nil {
		os.Exit(0)
	}
}
