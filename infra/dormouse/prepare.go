package dormouse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// preparation names servers that are to be installed and started once.
type preparation struct {
	servers string // path of the servers file
	data    string
	names   []string
	shows   *waits // where the phases are shown
	accepts bool   // whether to accept tools after the start, even if they have changed
}

// outcome is the result of installing and starting a server once.
type outcome struct {
	server string
	readiness
	err error
}

// readiness is what is known about a server after its start.
type readiness struct {
	version string // version of the server; may be ""
	tools   int
	warning string // a problem with its list of tools; may be ""
}

// errNotTaken is the error if dormouse run is up, and does not serve the server.
var errNotTaken = errors.New("dormouse run hosts another servers file: name that one with --servers, or its folder with --data")

// interruptible returns a context that ends at Ctrl-C or SIGTERM.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// prepare installs servers and starts them once, all at the same time. If no dormouse run uses the
// data folder, this program itself serves them meanwhile, at a free port. The outcomes are in the
// order of the names.
func (p Program) prepare(ctx context.Context, what preparation) (all []outcome, err error) {
	do := func(ctx context.Context, to *client) error {
		all, err = to.prepareAll(ctx, what)
		return err
	}
	err = use(ctx, target{Data: what.data}, 0, do)
	if isNotUp(err) {
		cfg := local.Config{Servers: what.servers, Data: what.data, Native: p.Native}
		err = hostAlone(ctx, cfg, func(ctx context.Context, _ string) error { return use(ctx, target{Data: what.data}, 0, do) })
	}
	return all, err
}

// prepareAll tells dormouse run to install the servers and start them once.
func (c *client) prepareAll(ctx context.Context, p preparation) ([]outcome, error) {
	taken, err := c.reload(ctx, p.names) // also forgets the recorded lists of earlier servers with these names
	if err != nil {
		return nil, err
	}
	if taken.Error != "" {
		return nil, fmt.Errorf("dormouse run does not take the servers file: %s", taken.Error)
	}
	served, err := c.servers(ctx)
	if err != nil {
		return nil, err
	}
	defer c.follows(ctx, p.shows)()
	all := make([]outcome, len(p.names))
	var together errgroup.Group
	for i, name := range p.names {
		if !slices.ContainsFunc(served, func(s api.Server) bool { return s.Name == name && s.Path != "" }) {
			return nil, errNotTaken
		}
		together.Go(func() error {
			if all[i] = c.prepare(ctx, name); all[i].err == nil && p.accepts {
				if _, err := c.accept(ctx, name, nil); !isCode(err, "not_found") { // "not_found": operators need not accept tools of this server
					all[i].err = err
				}
			}
			p.shows.over(name, all[i].String())
			return nil
		})
	}
	return all, together.Wait()
}

// prepare tells dormouse run to install a server and start it once, and waits for the result.
func (c *client) prepare(ctx context.Context, server string) outcome {
	var said api.Prepared
	err := c.call(ctx, http.MethodPost, "servers/"+server+"/prepare", nil, &said)
	return outcome{server, readiness{said.Version, said.Tools, said.Warning}, err}
}

func (o outcome) String() string {
	if o.err != nil {
		return "failed: " + o.err.Error()
	}
	return count(o.tools, "tool")
}

// prepareShown calls t.prepare, and shows a line for each server on the terminal.
func (t *terminal) prepareShown(ctx context.Context, p preparation) (all []outcome, err error) {
	if len(p.names) == 0 {
		return nil, nil
	}
	p.shows = t.waits("starting", p.names...)
	all, err = t.prepare(ctx, p)
	p.shows.end(err == nil)
	for _, o := range all {
		if o.err != nil && p.shows.width != nil { // the line on the terminal shows only the beginning of the error
			_, _ = fmt.Fprintf(t.err, "%s: %v\n", o.server, o.err)
		}
	}
	return all, err
}

type prepareCommand struct {
	Names []string `arg:"" optional:"" name:"name" help:"Name of a server; may be repeated. By default all servers of the file."`
	dataFlag
	fileFlag
	printing
}

// Run installs and starts the servers, all at the same time.
func (c *prepareCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	names, err := preparable(c.Servers, c.Names)
	if err != nil {
		return err
	}
	all, err := t.prepareShown(ctx, preparation{servers: c.Servers, data: c.Data, names: names})
	if err != nil {
		return err
	}
	type row struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		Tools   int    `json:"tools"`
		Why     string `json:"why,omitempty"`
	}
	rows, failed := []row{}, 0
	for _, o := range all {
		r := row{Name: o.server, Version: o.version, Tools: o.tools}
		if o.err != nil {
			r.Why = o.err.Error()
			failed++
		}
		rows = append(rows, r)
	}
	err = c.show(t, rows, func() error {
		_, err := fmt.Fprintf(t.out, "%d of %s ready\n", len(all)-failed, count(len(all), "server"))
		return err
	})
	return cmp.Or(err, failedIf(failed > 0))
}

// failedIf returns the failure of a command that has already printed the reasons, or nil if failed
// is false.
func failedIf(failed bool) error {
	if failed {
		return failure{code: exitFailed}
	}
	return nil
}

// preparable returns the names of the servers to start: the given ones, or all that are served.
func preparable(servers string, only []string) (names []string, err error) {
	file, _, err := serversfile.LoadHere(servers, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	for _, name := range only {
		s, ok := file.Server(name)
		switch why := file.Reason(name); {
		case why != "":
			return nil, fmt.Errorf("%s is not served: %s", name, why)
		case !ok:
			return nil, unknown("server", name, file.Names())
		case !s.Disabled:
			names = append(names, name)
		}
	}
	if only != nil {
		return names, nil
	}
	return enabled(file), nil
}

func enabled(file *serversfile.File) []string {
	return slices.DeleteFunc(file.Names(), func(name string) bool { s, _ := file.Server(name); return s.Disabled })
}

// hostAlone serves a servers file at a free port of loopback while fn runs. The caller sets
// Servers, Data and Native in cfg, and may set other fields.
func hostAlone(ctx context.Context, cfg local.Config, fn func(ctx context.Context, url string) error) error {
	bin, err := os.Executable()
	if err != nil {
		return fmt.Errorf("where this program is: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	address, ended := make(chan string, 1), make(chan error, 1)
	cfg.Listen, cfg.Sockets, cfg.Access = "127.0.0.1:0", "127.0.0.1:0", local.AccessOpen
	cfg.Idle, cfg.Runner = time.Minute, []string{bin, "runner"}
	cfg.Environ, cfg.Log, cfg.Ready = os.Environ(), io.Discard, func(url string) { address <- url }
	go func() { ended <- local.Run(ctx, cfg) }()
	select {
	case err := <-ended:
		return err
	case url := <-address:
		err = fn(ctx, url)
	}
	stop()
	return errors.Join(err, <-ended)
}
