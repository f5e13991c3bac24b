package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// proxy asks the endpoint at --url as a client does, so that a reverse proxy in front of it is
// checked too. at is the time at the endpoint, zero if it is not known.
func (d *doctor) proxy(ctx context.Context) (f finding, at time.Time) {
	const check = "proxy"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	base := address(d.URL)
	if u, err := url.Parse(base); err != nil || u.Host == "" {
		return bad(check, fmt.Sprintf("--url %q is no URL", d.URL), "want https://HOST"), at
	}
	// No server has this name. An answer that says so has passed the check of the Host
	// header.
	p := &peer{http: http.DefaultClient, url: base + "/doctor.none/mcp", key: d.Key}
	res, err := p.send(ctx, http.MethodPost, wire.NewRequest(json.RawMessage("1"), "ping", nil))
	if err != nil {
		return bad(check, fmt.Sprintf("nothing answers at %s: %v", d.URL, err), "start dormouse run, and have the proxy pass requests on to the address of --listen"), at
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	at, _ = http.ParseTime(res.Header.Get("Date")) // zero if it is none
	_, ours, problem := answer(body, nil)
	switch {
	case err != nil || !ours || problem == nil:
		return bad(check, fmt.Sprintf("%s answers %s, and is no dormouse", d.URL, res.Status), "have the proxy pass requests on to the address of --listen"), at
	case res.StatusCode == http.StatusForbidden:
		return bad(check, problem.Error(), "restart dormouse run so"), at
	case res.StatusCode == http.StatusUnauthorized && d.Key != "":
		return bad(check, problem.Error(), "dormouse keys create makes another key"), at
	case res.StatusCode >= http.StatusInternalServerError:
		return bad(check, problem.Error(), "dormouse doctor on that machine says more"), at
	}
	return good(check, "dormouse answers at %s", d.URL), at
}

// took returns the finding of a step that took this long.
func (f finding) took(d time.Duration) finding {
	f.MS = float64(d.Microseconds()) / 1000
	return f
}

// server takes one server through the steps that its first client would wait for. With --url
// it only asks the server there.
func (d *doctor) server(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	if d.remote() {
		return greet(ctx, &peer{http: http.DefaultClient, url: address(d.URL) + "/" + d.Server + "/mcp", key: d.Key}, nil)
	}
	if d.file == nil {
		return []finding{bad("path", "the servers file cannot be read", "see servers file above")}
	}
	s, ok := d.file.Server(d.Server)
	if why := d.file.Reason(d.Server); why != "" {
		return []finding{bad("path", d.Server+" is not served: "+why, "dormouse check shows all mistakes")}
	} else if !ok {
		return []finding{bad("path", unknown("server", d.Server, d.file.Names()).Error(), "name a server of the file")}
	}
	if s.Native != "" {
		return append([]finding{good("path", "a server in Go inside dormouse, which needs no program")}, d.start(ctx, nil)...)
	}
	if s.Remote.URL != "" {
		return append([]finding{good("path", "a remote server at %s, which needs no program", s.Remote.Address())}, d.start(ctx, nil)...)
	}
	path, err := d.look(s, runner.Needs(s, os.Getenv("PATH"), serversfile.FolderOf(d.Servers)))
	if err != nil {
		return []finding{bad("path", err.Error(), "correct command in the servers file, or install it")}
	}
	if d.machine != nil {
		_, _ = d.machine.reload(ctx, []string{d.Server}) // a record that stays does no harm to the checks
	}
	return append([]finding{good("path", "%s", path)}, d.start(ctx, newStarts(d.Server))...)
}

// start hosts the servers file in a data folder of its own, and greets the server there.
// seen takes the events of its start; nil for a server that starts nothing.
func (d *doctor) start(ctx context.Context, seen *starts) (all []finding) {
	data, err := os.MkdirTemp("", "dormouse-doctor-")
	if err != nil {
		return []finding{bad("start", err.Error(), "make the temporary folder writable, or set TMPDIR")}
	}
	defer func() { _ = os.RemoveAll(data) }() // what is left there harms nothing
	// The machine of d.cfg may serve others. This one does not, and confines servers alike.
	host := local.Config{Servers: d.Servers, EnvFiles: d.EnvFile, Data: data, Guests: d.cfg.HasGuests(), Native: d.t.program.Native}
	if seen != nil {
		host.JSON = seen
	}
	err = hostAlone(ctx, host, func(ctx context.Context, url string) error {
		client := &http.Client{}
		defer client.CloseIdleConnections()
		all = greet(ctx, &peer{http: client, url: url + "/" + d.Server + "/mcp"}, seen)
		if i := slices.IndexFunc(all, func(f finding) bool { return !f.OK }); i >= 0 {
			all[i].Output = lastLines(ctx, data, d.Server)
		}
		return nil
	})
	if err != nil {
		all = append(all, bad("start", err.Error(), "see the checks above"))
	}
	return all
}

// shown is how many of the last lines of a server doctor shows.
const shown = 10

// lastLines returns the last lines that the processes of a server wrote.
func lastLines(ctx context.Context, data, server string) (lines []string) {
	_ = use(ctx, target{Data: data}, patience, func(ctx context.Context, to *client) error {
		query := url.Values{"of": {server}, "lines": {fmt.Sprint(shown)}}
		body, err := to.stream(ctx, http.MethodGet, "logs?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }()
		for from := json.NewDecoder(body); ; {
			var o api.Output
			if err := from.Decode(&o); err != nil {
				return err // the end
			}
			for line := range strings.Lines(o.Text) {
				lines = append(lines, strings.TrimRight(line, "\n"))
			}
		}
	}) // if the lines cannot be read, doctor shows only the reason of the failure
	return lines[max(0, len(lines)-shown):]
}

// greet opens a session, asks for the tools and ends the session. seen has what this
// machine says about the start; nil for another machine.
func greet(ctx context.Context, p *peer, seen *starts) (all []finding) {
	begun := time.Now()
	init, err := p.initialize(ctx, wire.V20251125, "{}")
	took := time.Since(begun)
	defer func() { p.end(context.WithoutCancel(ctx)) }()
	seen.wait(ctx)
	steps, known := seen.findings()
	all = append(all, steps...)
	if err != nil {
		if !known {
			first, _, _ := strings.Cut(err.Error(), "\n")
			all = append(all, bad("handshake", first, "").took(took))
		}
		return all
	}
	if !known {
		all = append(all, good("handshake", "%s, protocol %s", strings.TrimSpace(init.ServerInfo.Name+" "+init.ServerInfo.Version), init.ProtocolVersion).took(took))
	}
	if init.Capabilities["tools"] == nil {
		return append(all, good("first list", "it has no tools"))
	}
	begun = time.Now()
	n, err := p.list(ctx, wire.MethodToolsList, "tools")
	if took = time.Since(begun); err != nil {
		return append(all, bad("first list", err.Error(), "").took(took))
	}
	return append(all, good("first list", "%s", count(n, "tool")).took(took))
}

// starts takes the events of a machine, as JSON lines, and keeps those of a server's start.
type starts struct {
	server string

	mu   sync.Mutex
	rest []byte // a line that is not complete
	last map[string]event
	over chan struct{} // is closed when the first start is over
	once sync.Once
}

func newStarts(server string) *starts { return &starts{server: server, over: make(chan struct{})} }

// eventWithin is how long after the server's answer the event of its start may come.
const eventWithin = 2 * time.Second

// wait waits for the event that ends the first start.
func (s *starts) wait(ctx context.Context) {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, eventWithin)
	defer cancel()
	select {
	case <-s.over:
	case <-ctx.Done():
	}
}

// event has the fields of a [journal.Event] that [starts] reads.
type event struct {
	Time      time.Time
	Kind      string
	Name      string
	Detail    string
	Phase     string
	Reason    string
	Hint      string
	ReadyMS   float64 `json:"duration_ms"`
	InstallMS float64 `json:"install_ms"`
}

// Write implements io.Writer.
func (s *starts) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = append(s.rest, p...)
	for {
		line, rest, ok := bytes.Cut(s.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		s.rest = rest
		var e event
		if json.Unmarshal(line, &e) != nil || e.Name != s.server {
			continue
		}
		if s.last == nil {
			s.last = map[string]event{}
		}
		if _, twice := s.last[e.Kind]; twice { // doctor asks about the first start only
			continue
		}
		s.last[e.Kind] = e
		if e.Kind == journal.ServerReady || e.Kind == journal.ServerFailed {
			s.once.Do(func() { close(s.over) })
		}
	}
}

// findings returns the steps of the start: install, start and handshake. known is false if
// there was no start, as for a server in Go.
func (s *starts) findings() (all []finding, known bool) {
	if s == nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	begun, starting := s.last[journal.ServerStarting]
	ready, isReady := s.last[journal.ServerReady]
	failed, hasFailed := s.last[journal.ServerFailed]
	if !starting && !hasFailed {
		return nil, false
	}
	ms := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	what := s.last[journal.ServerInstalling].Detail
	if isReady {
		install, handshake := ms(ready.InstallMS), ms(ready.ReadyMS)
		return []finding{
			good("install", "%s", cmp.Or(what, "nothing to install, or installed before")).took(install),
			good("start", "the process runs").took(max(0, ready.Time.Sub(begun.Time)-install-handshake)),
			good("handshake", "it has answered initialize").took(handshake),
		}, true
	}
	if !hasFailed {
		return nil, false
	}
	steps := []string{"install", "start", "handshake"}
	at := map[string]int{string(box.PhaseDepInstall): 0, string(box.PhaseMCPInit): 2}
	wrong, ok := at[failed.Phase]
	if !ok {
		wrong = 1
	}
	for _, step := range steps[:wrong] {
		all = append(all, good(step, "done"))
	}
	took := failed.Time.Sub(begun.Time)
	if !starting {
		took = 0
	}
	return append(all, bad(steps[wrong], failed.Reason, failed.Hint).took(took)), true
}
