package dormouse

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/certs"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/operate/pprofsock"
)

// secure has the flags of an endpoint that serves HTTPS itself.
type secure struct {
	TLS  string `name:"tls" placeholder:"DOMAIN" help:"Serve HTTPS with a certificate of Let's Encrypt for this domain, which is then the --public-url; at :443 without --listen."`
	Cert string `name:"tls-cert" type:"path" placeholder:"FILE" help:"Serve HTTPS with the certificate in this PEM file, which is read again when it changes."`
	Key  string `name:"tls-key" type:"path" placeholder:"FILE" help:"The key of --tls-cert, a PEM file."`
}

// says has the flags for what dormouse run prints.
type says struct {
	printing
	LogFormat string `name:"log-format" enum:"text,json" default:"text" help:"What stderr gets: text for people, or the log as json."`
	Verbose   bool   `short:"v" help:"Show boxes and frames too."`
}

// served has the flags that decide which servers dormouse run serves, and to whom. dormouse check
// and dormouse doctor have them too.
type served struct {
	Listen    listenAddress `short:"p" placeholder:"ADDRESS" aliases:"port" help:"Address of the endpoint, or its port on 127.0.0.1, by default 127.0.0.1:8787."`
	Sockets   listenAddress `placeholder:"ADDRESS" help:"Address for WebSocket clients, by default the next port after --listen."`
	EnvFile   []string      `name:"env-file" type:"path" placeholder:"FILE" help:"A file of variables for the servers file; may be repeated. It wins over .env, and the environment wins over it."`
	PublicURL string        `placeholder:"URL" name:"public-url" help:"The URL that clients call if the endpoint is behind a proxy: https://HOST."`
	Access    string        `enum:",keys,oauth,idp,open" default:"" help:"Who may call. keys: callers with an API key. oauth, idp: also users who sign in. open: everybody. By default open on loopback without --public-url, otherwise keys."`
}

// listenAddress is HOST:PORT. On the command line it may also be a port, which stands for that
// port of 127.0.0.1.
type listenAddress string

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *listenAddress) UnmarshalText(text []byte) error {
	*a = listenAddress(text)
	if port, err := strconv.ParseUint(strings.TrimPrefix(string(text), ":"), 10, 16); err == nil && !strings.HasPrefix(string(text), ":") {
		*a = listenAddress(fmt.Sprintf("127.0.0.1:%d", port))
	}
	return nil
}

// config returns the configuration for local.Run with these flags. The argument servers is the path
// of the servers file.
func (s served) config(p Program, servers string) local.Config {
	return local.Config{
		Servers: servers, EnvFiles: s.EnvFile, Listen: cmp.Or(string(s.Listen), "127.0.0.1:8787"), Sockets: string(s.Sockets), PublicURL: s.PublicURL, Access: s.Access,
		Native: p.Native, Environ: os.Environ(),
	}
}

type runCommand struct {
	Names []string `arg:"" optional:"" name:"name" help:"The servers file, if its name ends in .json; --servers takes any name. With --watch: names of servers; without one, all that have files of your own."`
	served
	fileFlag
	dataFlag
	storeFlag
	Durable  string        `name:"durability" enum:",disk,process" default:"" help:"What an answer survives: disk, a power cut; process, the kill of every process. By default process while only this user can call, otherwise disk."`
	Proxy    []string      `placeholder:"ADDRESS" help:"Address or network of a proxy whose X-Forwarded-For says where a request came from; may be repeated."`
	Origins  []string      `name:"allow-origin" placeholder:"ORIGIN" help:"An origin whose web pages may call, such as http://localhost:6274; may be repeated."`
	Idle     time.Duration `default:"120s" help:"How long a box may be idle, if its server has no time of its own."`
	ExitIdle time.Duration `name:"exit-when-idle" placeholder:"TIME" help:"End when nobody has asked for so long; systemd starts it again (docs/vps.md)."`
	Secure   secure        `embed:""`
	Watch    bool          `help:"Start a server anew when a source file below its folder is saved."`
	Says     says          `embed:""`
	Trials   trials        `embed:""`
}

// trials has hidden flags, for tests and experiments.
type trials struct {
	InitTimeout time.Duration `hidden:"" help:"How long a session waits for notifications/initialized."`
	Hold        time.Duration `hidden:"" help:"How long a response is held."`
	Cold        bool          `hidden:"" help:"Build new handlers for each message."`
	Runner      string        `hidden:"" help:"The program of a box, instead of this one."`
	Authority   string        `hidden:"" help:"The ACME directory of another authority for --tls."`
}

// Validate is called by kong.
func (c *runCommand) Validate() error {
	if len(c.Names) > 0 && strings.HasSuffix(c.Names[0], ".json") {
		c.Servers, c.Names = kong.ExpandPath(c.Names[0]), c.Names[1:]
	}
	if len(c.Names) > 0 && !c.Watch {
		return fmt.Errorf("dormouse run hosts all servers of the file, and names such as %[1]s are for --watch; a servers file whose name does not end in .json: dormouse run --servers %[1]s", c.Names[0])
	}
	return c.certificates().Check()
}

func (c *runCommand) certificates() certs.Settings {
	s := certs.Settings{Domain: c.Secure.TLS, Directory: c.Trials.Authority, Cert: c.Secure.Cert, Key: c.Secure.Key}
	if c.Listen == "" && s.Domain != "" {
		s.Redirect = ":80"
	}
	return s
}

// watching returns a function that reports whether a server is restarted when its source files
// change. It returns nil without --watch.
func (c *runCommand) watching() (func(server string) bool, error) {
	if !c.Watch {
		return nil, nil
	}
	file, _, err := serversfile.LoadHere(c.Servers, os.LookupEnv, c.EnvFile...)
	if err != nil {
		return nil, err
	}
	for _, name := range c.Names {
		if s, ok := file.Server(name); !ok && file.Reason(name) == "" {
			return nil, unknown("server", name, file.Names())
		} else if ok && s.Folder() == "" {
			return nil, fmt.Errorf("--watch %s: others publish its program, so there is no file of it to save here", name)
		}
	}
	return func(server string) bool { return len(c.Names) == 0 || slices.Contains(c.Names, server) }, nil
}

func (c *runCommand) Run(t *terminal) error {
	if !c.Says.JSON {
		if _, err := t.fill(asked{servers: c.Servers, envFiles: c.EnvFile}); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	drain := terms(stop)
	reload := hangups(stop)
	if err := pprofsock.Serve(os.Getenv(pprofsock.Environment), "dormouse"); err != nil {
		return err
	}
	bin, err := os.Executable()
	if err != nil {
		return fmt.Errorf("where this program is: %w", err)
	}
	runner := []string{bin, "runner"}
	if c.Trials.Runner != "" {
		runner = []string{c.Trials.Runner}
	}
	store, err := useTable(ctx, c.Store, os.Getenv)
	if err != nil {
		return err
	}
	proxies, err := local.ReadProxies(c.Proxy)
	if err != nil {
		return err
	}
	cfg := c.config(t.program, c.Servers)
	if cfg.TLS = c.certificates(); cfg.TLS.Redirect != "" {
		cfg.Listen = ":443"
	}
	cfg.Proxies, cfg.Origins, cfg.Store, cfg.Reload, cfg.Data, cfg.Durability = proxies, c.Origins, store, reload, c.Data, c.Durable
	cfg.Idle, cfg.Cold = c.Idle, c.Trials.Cold
	cfg.Functions, cfg.Runner, cfg.Verbose, cfg.Command = t.program.Functions, runner, c.Says.Verbose, typed(os.Args[0])
	cfg.Apart = c.Trials.Runner != ""
	cfg.Edits = t.editsOf(c.Servers, c.Data)
	cfg.Drain, cfg.InitTimeout, cfg.Hold = drain, c.Trials.InitTimeout, c.Trials.Hold
	if cfg.Telemetry, err = otlp.FromEnviron(cfg.Environ, "dormouse"); err != nil {
		return err
	}
	if cfg.Telemetry != nil {
		cfg.Telemetry.Version = builtAs().Version
	}
	cfg.Prepare = true
	if cfg.Watch, err = c.watching(); err != nil {
		return err
	}
	if err := serviceOf(&cfg, c.ExitIdle); err != nil {
		return err
	}
	ready, forget := cfg.Ready, func() {}
	cfg.Ready = func(url string) {
		forget = upNote{Data: c.Data, URL: url}.leave()
		ready(url)
	}
	defer func() { forget() }()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	switch {
	case c.Says.JSON:
		cfg.JSON = t.out
	case c.Says.LogFormat == "text":
		d := c.Says.open(t, func() {
			select {
			case reload <- syscall.SIGHUP:
			default: // a signal is waiting already
			}
		}, leave)
		defer d.Close()
		cfg.Display = d.Terminal
	}
	if c.Says.LogFormat == "json" {
		cfg.Log = t.err
	}
	return local.Run(ctx, cfg)
}

// typed returns what the user types to start this program: its name if the shell finds that,
// otherwise its path. For the temporary path of go run, it returns "go run .".
func typed(path string) string {
	if strings.Contains(path, "/go-build") && filepath.Base(filepath.Dir(path)) == "exe" {
		return "go run ."
	}
	if _, err := exec.LookPath("dormouse"); err == nil {
		return "dormouse"
	}
	return path
}
