package dormouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// A prepared server is installed, and its handshake record has its answers to initialize
// and its lists. So the first clients are answered without a process.

// preparation says which server to prepare.
type preparation struct {
	servers string // path of the servers file
	data    string // data folder
	server  string // its name
	shows   *waits // shows the phases of the preparation
}

// readiness is what a prepared server said.
type readiness struct {
	version string // of the server; may be ""
	tools   int
	warning string // about its tools; "" for none
}

// errNotTaken is the error for a run that does not host the server.
var errNotTaken = errors.New("dormouse run hosts another servers file: name that one with --servers, or its folder with --data")

// interruptible returns a context that ends with Ctrl-C.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// prepare prepares a server on the machine that uses the data folder. If none does, this
// program hosts the server itself for that time, at an address of its own.
func (p Program) prepare(ctx context.Context, what preparation) (ready readiness, err error) {
	err = use(ctx, target{Data: what.data}, 0, func(ctx context.Context, to *client) error {
		ready, err = prepareThere(ctx, to, what)
		return err
	})
	if isNotUp(err) {
		return prepareAlone(ctx, local.Config{Servers: what.servers, Data: what.data, Native: p.Native}, what)
	}
	return ready, err
}

// prepareThere prepares a server on a running machine.
func prepareThere(ctx context.Context, to *client, p preparation) (readiness, error) {
	taken, err := to.reload(ctx, []string{p.server})
	if err != nil {
		return readiness{}, err
	}
	if taken.Error != "" {
		return readiness{}, fmt.Errorf("dormouse run does not take the servers file: %s", taken.Error)
	}
	all, err := to.servers(ctx)
	if err != nil {
		return readiness{}, err
	}
	if !slices.ContainsFunc(all, func(s api.Server) bool { return s.Name == p.server && s.Path != "" }) {
		return readiness{}, errNotTaken
	}
	defer to.follows(ctx, p.shows)()
	url, key, err := to.endpoint(ctx, p.server)
	if err != nil {
		return readiness{}, err
	}
	keys := []string{key}
	if key != "" {
		keys = append(keys, to.keysOfTenants(ctx, p.server)...)
	}
	ready, err := handshakes(ctx, url, keys)
	if err == nil {
		to.putToSleep(ctx, p.server)
	}
	return ready, err
}

// sleepWithin is how long add waits until the boxes of its server sleep.
const sleepWithin = 3 * time.Second

// putToSleep stops the processes that the handshakes have started, and waits until they
// have ended. If a server does not announce changes of its lists, Dormouse takes them
// from the record only while the server sleeps. After a failure the first client asks a
// process instead.
func (c *client) putToSleep(ctx context.Context, server string) {
	ctx, cancel := context.WithTimeout(ctx, sleepWithin)
	defer cancel()
	if c.call(ctx, http.MethodPost, "servers/"+server+"/stop", api.Stop{Keep: true}, nil) != nil {
		return
	}
	tick := time.NewTicker(sleepWithin / 60)
	defer tick.Stop()
	for {
		if s, err := c.server(ctx, server); err != nil || s.State == api.Asleep || s.State == api.Remote {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// mostTenants is for how many tenants add prepares a server, besides the default one.
const mostTenants = 8

// keysOfTenants makes a key for each tenant whose keys open a server, because records
// belong to a tenant. It leaves out the default tenant. An error only makes the list
// shorter: the first client of such a tenant then starts a process.
func (c *client) keysOfTenants(ctx context.Context, server string) (keys []string) {
	list, err := c.keys(ctx, "")
	if err != nil {
		return nil
	}
	tenants := map[string]bool{"default": true}
	for _, k := range list {
		if tenants[k.Tenant] || k.Revoked != nil || k.Expires != nil && k.Expires.Before(time.Now()) || !apikey.May(k.Servers, server) || len(keys) == mostTenants {
			continue
		}
		tenants[k.Tenant] = true
		if key, err := c.shortKey(ctx, k.Tenant, server); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// prepareAlone hosts the servers file until the handshakes are over.
func prepareAlone(ctx context.Context, cfg local.Config, p preparation) (ready readiness, err error) {
	err = hostAlone(ctx, cfg, func(ctx context.Context, url string) error {
		return use(ctx, target{Data: cfg.Data}, 0, func(ctx context.Context, to *client) error {
			if _, err := to.reload(ctx, []string{p.server}); err != nil { // what an earlier server of this name has said
				return err
			}
			defer to.follows(ctx, p.shows)()
			ready, err = handshakes(ctx, url+"/"+p.server+"/mcp", []string{""})
			return err
		})
	})
	return ready, err
}

// hostAlone hosts a servers file at an address of its own until do has returned. The caller
// sets Servers, Data, Native and what else it wants in cfg.
func hostAlone(ctx context.Context, cfg local.Config, do func(ctx context.Context, url string) error) error {
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
		err = do(ctx, url)
	}
	stop()
	return errors.Join(err, <-ended)
}

// clientKind is what a kind of client says in its handshake. The tools and other lists of a
// server may depend on it.
type clientKind struct{ version, capabilities string }

// clientKinds are the kinds of clients that a server is prepared for, the most usual one
// first.
func clientKinds() []clientKind {
	const roots, all = `{"roots":{"listChanged":true}}`, `{"roots":{"listChanged":true},"sampling":{},"elicitation":{}}`
	return []clientKind{
		{wire.V20251125, `{}`},
		{wire.V20251125, roots},
		{wire.V20251125, all},
		{wire.V20251125, `{"roots":{},"elicitation":{}}`},
		{wire.V20251125, `{"elicitation":{}}`},
		{wire.V20250618, `{}`},
		{wire.V20250618, roots},
		{wire.V20250618, `{"elicitation":{}}`},
	}
}

// furtherHandshakes is the time for all handshakes but the first. Each may start a process.
const furtherHandshakes = 5 * time.Second

// handshakes speaks to a server as several kinds of clients with each of the keys. Only the
// first handshake must succeed.
func handshakes(ctx context.Context, url string, keys []string) (readiness, error) {
	client := &http.Client{}
	defer client.CloseIdleConnections()
	shake := func(ctx context.Context, key string, kind clientKind) (readiness, error) {
		p := &peer{http: client, url: url, key: key}
		r, err := p.shake(ctx, kind)
		p.end(context.WithoutCancel(ctx))
		return r, err
	}
	kinds := clientKinds()
	ready, err := shake(ctx, keys[0], kinds[0])
	if err != nil {
		return ready, err
	}
	ctx, cancel := context.WithTimeout(ctx, furtherHandshakes)
	defer cancel()
	var rest errgroup.Group
	rest.SetLimit(runtime.NumCPU())
	for i, kind := range kinds {
		for j, key := range keys {
			if ctx.Err() == nil && i+j > 0 {
				rest.Go(func() error {
					_, _ = shake(ctx, key, kind) // if this fails, the first client of this kind starts a process
					return nil
				})
			}
		}
	}
	_ = rest.Wait()
	return ready, nil
}

// shake opens a session and asks for all lists of the server.
func (p *peer) shake(ctx context.Context, kind clientKind) (r readiness, err error) {
	init, err := p.initialize(ctx, kind.version, kind.capabilities)
	if err != nil {
		return r, err
	}
	r.version = init.ServerInfo.Version
	for _, l := range []struct{ capability, method, key string }{
		{"tools", wire.MethodToolsList, "tools"},
		{"prompts", wire.MethodPromptsList, "prompts"},
		{"resources", wire.MethodResourcesList, "resources"},
		{"resources", wire.MethodResourceTemplatesList, "resourceTemplates"},
	} {
		if init.Capabilities[l.capability] == nil {
			continue
		}
		n, err := p.list(ctx, l.method, l.key)
		if l.key == "tools" {
			var endless *wire.EndlessList
			if errors.As(err, &endless) {
				r.warning, err = endless.Error(), nil
			}
			if r.tools = n; err != nil {
				return r, err
			}
		}
	}
	return r, nil
}
