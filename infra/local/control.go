package local

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/fleet/process"
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
	PID       int         `json:"pid"` // PID of the runner
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
	Why  string `json:"why,omitempty"` // why it is not served; "" if it is
}

// MachineStatus is the answer of a running machine to dormouse ps.
type MachineStatus struct {
	Servers   []ServerStatus  `json:"servers"` // in the order of the file, rejected ones last
	Functions []ProcessStatus `json:"functions"`
	Boxes     []BoxStatus     `json:"boxes"`
}

// Status asks the Run that uses a data folder what runs there. up is false if no Run
// uses the folder; then nothing runs.
func Status(ctx context.Context, data string) (s MachineStatus, up bool, err error) {
	up, err = ask(ctx, data, "ps", &s)
	return s, up, err
}

// ReadUsage asks the Run that uses a data folder for its counters. up is false if no
// Run uses the folder. The counters end with the Run.
func ReadUsage(ctx context.Context, data string) (u Usage, up bool, err error) {
	up, err = ask(ctx, data, "usage", &u)
	return u, up, err
}

// ReadBill asks the Run that uses a data folder for the bill, or reads what the last
// Run saved. Since is zero if nothing was ever counted there.
func ReadBill(ctx context.Context, data string) (b bill.Bill, err error) {
	if up, err := ask(ctx, data, "bill", &b); up || err != nil {
		return b, err
	}
	return bill.Read(data)
}

// ask gets an answer from the control socket. It returns false if no Run listens.
func ask(ctx context.Context, data, what string, into any) (bool, error) {
	socket, key, err := datafolder.Control(data)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // no Run ever used the folder
	}
	if err != nil {
		return false, err
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local/"+what, nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		return false, nil // no Run listens
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

// control serves Status, ReadUsage and ReadBill on the control socket.
type control struct {
	key       string // the key that callers must show
	servers   *catalog.Catalog
	functions functions
	boxes     *boxes.Pool
	ledger    *bill.Ledger
	usage     func() Usage
}

// ServeHTTP implements http.Handler.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !hmac.Equal([]byte(r.Header.Get("Authorization")), []byte("Bearer "+c.key)) {
		http.Error(w, "the caller does not know the secret of the data folder", http.StatusUnauthorized)
		return
	}
	var answer any
	var err error
	switch r.Method + " " + r.URL.Path {
	case "GET /ps":
		answer, err = c.status(r.Context())
	case "GET /usage":
		answer = c.usage()
	case "GET /bill":
		answer, err = c.ledger.Bill(r.Context())
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the caller may be gone
}

func (c *control) status(ctx context.Context) (MachineStatus, error) {
	s := MachineStatus{Servers: []ServerStatus{}, Functions: c.functions.processes(), Boxes: []BoxStatus{}}
	for _, name := range c.servers.Names() {
		server, _ := c.servers.Server(name)
		s.Servers = append(s.Servers, ServerStatus{Name: name, Off: server.Disabled, Why: c.servers.Reason(name)})
	}
	for _, r := range c.servers.Rejected() {
		s.Servers = append(s.Servers, ServerStatus{Name: r.Name, Why: r.Reason()})
	}
	tasks, err := c.boxes.Tasks(ctx)
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
