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
	"syscall"
	"time"
)

// began tells a process from others, also where each has a kernel, and pids, of its own.
var began = time.Now()

func main() {
	ignore := flag.Bool("ignore-term", false, "ignore SIGTERM and the end of stdin")
	hops := flag.Int("hops", -1, "pass the connection in descriptor 3 through so many processes, and put what comes on it into the file answer")
	flag.Parse()
	if *hops >= 0 {
		hop(*hops)
		return
	}
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
	Path  string `json:"path"`
	Line  bool   `json:"line"` // all in one line
	Send  string `json:"send"`
	Hops  int    `json:"hops"`
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
	case "began":
		text(id, began.String())
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
	case "ask":
		answer, err := ask(a)
		text(id, answer+outcome(err))
	}
}

func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

// ask connects to an address, sends a text, and returns the beginning of the answer. With
// hops, processes that have lost their parents wait for it.
func ask(a arguments) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.Path)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if a.Hops > 0 {
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			return "", err
		}
		if err := next(a.Hops, f); err != nil {
			return "", err
		}
		_, _ = f.Close(), c.Close()
		for ctx.Err() == nil {
			if answer, err := os.ReadFile("answer"); err == nil && len(answer) > 0 {
				return string(answer), os.Remove("answer")
			}
			time.Sleep(10 * time.Millisecond)
		}
		return "", ctx.Err()
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write([]byte(a.Send)); err != nil {
		return "", err
	}
	answer := make([]byte, 1024)
	n, err := c.Read(answer)
	return string(answer[:n]), err
}

// next starts this program again, with a connection, in a session of its own.
func next(hops int, c *os.File) error {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", "-hops", fmt.Sprint(hops-1)) //nolint:gosec // this program
	cmd.ExtraFiles, cmd.SysProcAttr = []*os.File{c}, &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// hop sends a request at the beginning of its way.
func hop(left int) {
	c := os.NewFile(3, "connection")
	if _, err := os.Stat("asked"); err != nil {
		_ = os.WriteFile("asked", nil, 0o600)
		_, _ = c.WriteString("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	if left > 0 {
		_ = next(left, c)
		return
	}
	answer := make([]byte, 1024)
	n, _ := c.Read(answer)
	_ = os.WriteFile("answer", answer[:n], 0o600)
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
