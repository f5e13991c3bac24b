package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// ProcessStatus is one running function process, as dormouse ps shows it.
type ProcessStatus struct {
	Name        string    `json:"name"`
	PID         int       `json:"pid"`
	State       string    `json:"state"`
	Since       time.Time `json:"since"`
	Invocations int       `json:"invocations"`
}

// BoxStatus is one running box with the processes in it.
type BoxStatus struct {
	Box       string      `json:"box"`
	Server    string      `json:"server"`
	Task      string      `json:"task"`
	PID       int         `json:"pid"` // of its runner
	Started   time.Time   `json:"started"`
	Processes []BoxMember `json:"processes"`
}

// BoxMember is one process of a box, other than its runner.
type BoxMember struct {
	PID     int       `json:"pid"`
	Command string    `json:"command"`
	Started time.Time `json:"started"`
}

// MachineStatus is what a running machine answers to dormouse ps.
type MachineStatus struct {
	Functions []ProcessStatus `json:"functions"`
	Boxes     []BoxStatus     `json:"boxes"`
}

// Status asks the Run that uses a data folder what runs there. up is false, and
// nothing runs, if there is none.
func Status(ctx context.Context, data string) (s MachineStatus, up bool, err error) {
	folder, err := socketPath(data)
	if err != nil {
		return s, false, err
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(folder, "control.sock"))
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local/ps", nil)
	if err != nil {
		return s, false, err
	}
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return s, false, err
		}
		return s, false, nil // nobody listens: nothing runs
	}
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		return s, false, fmt.Errorf("dormouse run did not answer as expected: %w", err)
	}
	return s, true, nil
}

// startControl opens the socket that Status asks.
func (m *machine) startControl(context.Context) error {
	return m.serveUnix("control", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := m.status(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s)
	}))
}

func (m *machine) status(ctx context.Context) (MachineStatus, error) {
	s := MachineStatus{Functions: []ProcessStatus{}, Boxes: []BoxStatus{}}
	for _, f := range m.pool.Status() {
		for _, i := range f.Instances {
			s.Functions = append(s.Functions, ProcessStatus{Name: f.Name, PID: i.PID, State: i.State, Since: i.Since, Invocations: i.Invocations})
		}
	}
	tasks, err := m.boxes.Tasks(ctx)
	if err != nil {
		return s, err
	}
	for _, t := range tasks {
		if t.State == fleet.Stopped {
			continue
		}
		s.Boxes = append(s.Boxes, BoxStatus{
			Box: t.Box, Server: t.Server, Task: t.ID, PID: t.PID, Started: t.Started, Processes: members(t.PID),
		})
	}
	return s, nil
}

// maxSocketPath leaves room for the names of sockets below a folder: a unix
// socket's path has 104 bytes on macOS and 108 on Linux.
const maxSocketPath = 80

// socketPath is where the sockets of a data folder are: in it, or, if its path is
// too long for a socket, in a folder of the user's own below the system's one for
// temporary files.
func socketPath(data string) (string, error) {
	data, err := filepath.Abs(data)
	if err != nil {
		return "", err
	}
	if path := filepath.Join(data, "run"); len(path) <= maxSocketPath {
		return path, nil
	}
	sum := sha256.Sum256([]byte(data))
	return filepath.Join(os.TempDir(), fmt.Sprintf("dormouse-%d-%s", os.Getuid(), hex.EncodeToString(sum[:6]))), nil
}

// socketFolder makes the folder anew. Nobody else may have one of that name.
func socketFolder(data string) (string, error) {
	path, err := socketPath(data)
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(path); err != nil {
		return "", err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	return path, nil
}

// announce prints what to paste, once the endpoint is open.
func (m *machine) announce() {
	base := "http://" + m.endpoint.Addr().String()
	for _, name := range m.servers.Names() {
		if s, ok := m.servers.Server(name); !ok || s.Disabled {
			continue
		}
		url := base + "/" + name + "/mcp"
		if m.cfg.JSON {
			_ = json.NewEncoder(m.cfg.Out).Encode(map[string]any{"time": time.Now().UTC(), "kind": "ready", "name": name, "url": url})
			continue
		}
		_, _ = fmt.Fprintf(m.cfg.Out, pasteLines, name, url)
	}
	if !m.cfg.JSON {
		_, _ = fmt.Fprintln(m.cfg.Out, "\nNothing runs until a message comes. Ctrl-C ends it.")
	}
}

const pasteLines = `
%[1]s  %[2]s
  curl -s %[2]s -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}'
  claude mcp add --transport http %[1]s %[2]s
  npx @modelcontextprotocol/inspector --cli %[2]s --transport http --method tools/list
`
