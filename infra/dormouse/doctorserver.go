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

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// proxy sends a request to the endpoint of --url as a client does, which also checks a reverse
// proxy in front of it. The result at is the time at the endpoint, or zero if unknown.
func (d *doctor) proxy(ctx context.Context) (f finding, at time.Time) {
	const check = "proxy"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	base := address(d.URL)
	if u, err := url.Parse(base); err != nil || u.Host == "" {
		return bad(check, fmt.Sprintf("--url %q is no URL", d.URL), "want https://HOST"), at
	}
	// No server is called doctor.none. The endpoint checks the Host header before it looks for the
	// server. So an error that the server is unknown shows that the Host header is accepted.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/doctor.none/mcp", bytes.NewReader(wire.NewRequest(json.RawMessage("1"), "ping", nil)))
	if err != nil {
		return bad(check, err.Error(), "want https://HOST"), at
	}
	r.Header.Set("Content-Type", wire.MediaJSON)
	r.Header.Set("Accept", wire.MediaJSON+", "+wire.MediaSSE)
	if d.Key != "" {
		r.Header.Set("Authorization", "Bearer "+d.Key)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return bad(check, fmt.Sprintf("nothing answers at %s: %v", d.URL, err), "start dormouse run, and have the proxy pass requests on to the address of --listen"), at
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	at, _ = http.ParseTime(res.Header.Get("Date")) // zero without a valid Date
	var answer struct{ Error struct{ Message string } }
	problem := ""
	if err == nil && json.Unmarshal(body, &answer) == nil {
		problem = answer.Error.Message
	}
	switch {
	case problem == "":
		return bad(check, fmt.Sprintf("%s answers %s, and is no dormouse", d.URL, res.Status), "have the proxy pass requests on to the address of --listen"), at
	case res.StatusCode == http.StatusForbidden:
		return bad(check, problem, "restart dormouse run so"), at
	case res.StatusCode == http.StatusUnauthorized && d.Key != "":
		return bad(check, problem, "dormouse keys create makes another key"), at
	case res.StatusCode >= http.StatusInternalServerError:
		return bad(check, problem, "dormouse doctor on that machine says more"), at
	}
	return good(check, "dormouse answers at %s", d.URL), at
}

func (f finding) took(d time.Duration) finding {
	f.MS = float64(d.Microseconds()) / 1000
	return f
}

// server checks one server: it takes the steps that the server's first client would wait for. With
// --url it only calls the server there.
func (d *doctor) server(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	if d.remote() {
		return d.greet(ctx, d.target, nil)
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
		_, _ = d.machine.reload(ctx, []string{d.Server}) // an error is ignored: the checks do not need the lists that dormouse run forgets
	}
	return append([]finding{good("path", "%s", path)}, d.start(ctx, &starts{server: d.Server, first: map[string]journal.Event{}, over: make(chan struct{})})...)
}

// start serves the servers file in a temporary data folder, and calls the server there. The
// argument seen records the events of the server's start; it is nil for a server that starts no
// process.
func (d *doctor) start(ctx context.Context, seen *starts) (all []finding) {
	data, err := os.MkdirTemp("", "dormouse-doctor-")
	if err != nil {
		return []finding{bad("start", err.Error(), "make the temporary folder writable, or set TMPDIR")}
	}
	defer func() { _ = os.RemoveAll(data) }() // an error is ignored: what is left does no harm
	// Guests confines the server as dormouse run would, though only this command can call it here.
	host := local.Config{Servers: d.Servers, EnvFiles: d.EnvFile, Data: data, Guests: d.cfg.HasGuests(), Native: d.t.program.Native}
	if seen != nil {
		host.Events = seen.take
	}
	err = hostAlone(ctx, host, func(ctx context.Context, _ string) error {
		all = d.greet(ctx, target{Data: data}, seen)
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

// shown is how many of the last lines of a server's output doctor shows.
const shown = 10

// lastLines returns the last lines of the output of a server's processes.
func lastLines(ctx context.Context, data, server string) (lines []string) {
	// An error is ignored: the finding already says why the server failed.
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
				return err // io.EOF at the end
			}
			for line := range strings.Lines(o.Text) {
				lines = append(lines, strings.TrimRight(line, "\n"))
			}
		}
	})
	return lines[max(0, len(lines)-shown):]
}

// greet opens a session with the server, lists its tools, and ends the session. The argument seen
// has the events of the server's start. It is nil if this program does not host the server, and for
// a server that starts no process.
func (d *doctor) greet(ctx context.Context, at target, seen *starts) (all []finding) {
	err := use(ctx, at, 0, func(ctx context.Context, to *client) error {
		begun := time.Now()
		s, err := to.connect(ctx, d.Server, wire.V20251125)
		took := time.Since(begun)
		if err == nil {
			defer func() { _ = s.Close() }()
		}
		seen.wait(ctx)
		steps, known := seen.findings()
		all = append(all, steps...)
		switch {
		case err != nil && known:
			return nil
		case err != nil:
			first, _, _ := strings.Cut(err.Error(), "\n")
			all = append(all, bad("handshake", first, "").took(took))
			return nil
		}
		init := s.InitializeResult()
		if !known {
			server := cmp.Or(init.ServerInfo, &mcp.Implementation{})
			all = append(all, good("handshake", "%s, protocol %s", strings.TrimSpace(server.Name+" "+server.Version), init.ProtocolVersion).took(took))
		}
		if init.Capabilities == nil || init.Capabilities.Tools == nil {
			all = append(all, good("first list", "it has no tools"))
			return nil
		}
		begun = time.Now()
		list, err := toolsOver(ctx, s, d.Server)
		f := good("first list", "%s", count(len(list.Tools), "tool"))
		if err != nil {
			f = bad("first list", err.Error(), "")
		}
		all = append(all, f.took(time.Since(begun)))
		return nil
	})
	if err != nil {
		all = append(all, bad("handshake", err.Error(), ""))
	}
	return all
}

// starts records the events of a server's first start. Its methods are safe for concurrent use.
type starts struct {
	server string

	mu    sync.Mutex
	first map[string]journal.Event // the first event of each kind
	ended bool
	over  chan struct{} // closed when the start has succeeded or failed
}

// eventWithin is how long wait waits for an event about the start, after the server has answered.
const eventWithin = 2 * time.Second

// wait waits until the first start has succeeded or failed, but for eventWithin at most.
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

// take records an event if it belongs to the first start.
func (s *starts) take(e journal.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.first[e.Kind]; twice || s.ended || e.Name != s.server {
		return
	}
	s.first[e.Kind] = e
	if s.ended = e.Kind == journal.ServerReady || e.Kind == journal.ServerFailed; s.ended {
		close(s.over)
	}
}

// findings returns the steps of the start: install, start and handshake. The result known is false
// if no process is ready and none has failed, as for a server in Go.
func (s *starts) findings() (all []finding, known bool) {
	if s == nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	begun, starting := s.first[journal.ServerStarting]
	ready, isReady := s.first[journal.ServerReady]
	failed, hasFailed := s.first[journal.ServerFailed]
	if !starting && !hasFailed {
		return nil, false
	}
	if isReady {
		what := cmp.Or(s.first[journal.ServerInstalling].Detail, "nothing to install, or installed before")
		return []finding{
			good("install", "%s", what).took(ready.Install),
			good("start", "the process runs").took(max(0, ready.Time.Sub(begun.Time)-ready.Install-ready.Duration)),
			good("handshake", "it has answered initialize").took(ready.Duration),
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
