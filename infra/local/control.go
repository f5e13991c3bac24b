package local

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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

// ServerStatus is one server of the servers file.
type ServerStatus struct {
	Name string `json:"name"`
	Off  bool   `json:"off,omitempty"` // disabled in the file
	Why  string `json:"why,omitempty"` // it is not served, "" for one that is
}

// MachineStatus is what a running machine answers to dormouse ps.
type MachineStatus struct {
	Servers   []ServerStatus  `json:"servers"` // in the order of the file; those that are rejected last
	Functions []ProcessStatus `json:"functions"`
	Boxes     []BoxStatus     `json:"boxes"`
}

// Status asks the Run that uses a data folder what runs there. up is false, and
// nothing runs, if there is none.
func Status(ctx context.Context, data string) (s MachineStatus, up bool, err error) {
	up, err = ask(ctx, data, "ps", &s)
	return s, up, err
}

// ReadUsage asks the Run that uses a data folder for its counters. up is false if
// there is none; nothing is counted beyond the end of a Run.
func ReadUsage(ctx context.Context, data string) (u Usage, up bool, err error) {
	up, err = ask(ctx, data, "usage", &u)
	return u, up, err
}

// ask gets an answer from the control socket; false means that nobody listens.
func ask(ctx context.Context, data, what string, into any) (bool, error) {
	folder, err := socketPath(data)
	if err != nil {
		return false, err
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(folder, "control.sock"))
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local/"+what, nil)
	if err != nil {
		return false, err
	}
	word, err := controlWord(data)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // nothing was ever run there
	}
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+word)
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		return false, nil // nobody listens: nothing runs
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return true, fmt.Errorf("dormouse run answers %s to %q", res.Status, what)
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return false, fmt.Errorf("dormouse run did not answer as expected: %w", err)
	}
	return true, nil
}

// controlWord proves to the control socket that its caller can read the data folder, which
// programs in a sandbox cannot.
func controlWord(data string) (string, error) {
	secret, err := readSecret(filepath.Join(data, secretName))
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("control"))
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// startControl opens the socket that Status and ReadUsage ask.
func (m *machine) startControl(context.Context) error {
	mux := http.NewServeMux()
	answer := func(path string, what func(context.Context) (any, error)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			v, err := what(r.Context())
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	answer("/ps", func(ctx context.Context) (any, error) { return m.status(ctx) })
	answer("/usage", func(context.Context) (any, error) { return m.usage(), nil })
	answer("/bill", func(ctx context.Context) (any, error) { return m.bill(ctx) })
	word, err := controlWord(m.data)
	if err != nil {
		return err
	}
	want := []byte("Bearer " + word)
	return m.serveUnix("control", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hmac.Equal([]byte(r.Header.Get("Authorization")), want) {
			http.Error(w, "the caller does not know the secret of the data folder", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

func (m *machine) status(ctx context.Context) (MachineStatus, error) {
	s := MachineStatus{Servers: []ServerStatus{}, Functions: m.functions.processes(), Boxes: []BoxStatus{}}
	for _, name := range m.servers.Names() {
		server, _ := m.servers.Server(name)
		s.Servers = append(s.Servers, ServerStatus{Name: name, Off: server.Disabled, Why: m.servers.Reason(name)})
	}
	for _, r := range m.servers.Rejected() {
		s.Servers = append(s.Servers, ServerStatus{Name: r.Name, Why: r.Reason()})
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
