// Command dormouse hosts the servers of a servers file on this machine. It also shows
// the running processes and the sessions, and manages API keys.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/profile"
	"github.com/dormouse-mcp/dormouse/shared/slack"
)

type commands struct {
	Run  runCommand  `cmd:"" help:"Host the servers of a servers file on this machine."`
	PS   psCommand   `cmd:"" name:"ps" help:"Show functions, boxes, processes and sessions."`
	Logs logsCommand `cmd:"" help:"Show what the processes of a server or session said on stderr."`
	Bill billCommand `cmd:"" help:"Show what AWS would have billed for what this machine has done."`
	Keys keysCommand `cmd:"" help:"Make, show and revoke API keys."`

	Version versionCommand `cmd:"" help:"Show the version, and what it was built with."`
	Runner  runnerCommand  `cmd:"" hidden:"" help:"Be the runner of a box. Only dormouse run calls it."`

	ShowVersion kong.VersionFlag `name:"version" help:"Show the version."`
}

// terminal holds what a command reads and writes besides files.
type terminal struct {
	out, err io.Writer
	now      func() time.Time
}

// printJSON prints one value over several lines.
func (t *terminal) printJSON(v any) error {
	enc := json.NewEncoder(t.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

type runnerCommand struct{}

// Run is the whole life of a runner.
func (runnerCommand) Run() error {
	runner.Main()
	return nil
}

type runCommand struct {
	Listen     string        `default:"127.0.0.1:8787" help:"Address of the endpoint."`
	Sockets    string        `help:"Address of the endpoint for WebSocket clients. Without it, the port behind that of --listen."`
	Servers    string        `default:"servers.json" type:"path" help:"The servers file, in the form of any client."`
	EnvFile    []string      `name:"env-file" type:"path" placeholder:"FILE" help:"File of variables for the servers file; may be repeated. What is set outside wins, and .env beside the servers file comes last."`
	Strict     bool          `help:"End if a server of the file cannot be hosted."`
	Data       string        `default:".dormouse" type:"path" help:"Folder for sessions, events and the ticket secret."`
	Store      string        `help:"Where sessions are kept: sqlite:PATH, or dynamodb:TABLE[?endpoint=URL&region=NAME] with the credentials in the environment (a table that is missing at an endpoint of its own is made). Without it, a SQLite file in the data folder."`
	PublicURL  string        `name:"public-url" help:"What clients call the endpoint if that is not --listen: https://HOST of a reverse proxy. Its host is served, and callers need an API key."`
	Origins    []string      `name:"allow-origin" placeholder:"ORIGIN" help:"Origin of web pages that may call, such as http://localhost:6274; may be repeated. Pages of the endpoint's own address always may."`
	Functions  string        `default:"inside" help:"Where messages are handled: inside, in this process; process, by the function programs beside this one, invoked as on AWS; or a folder with programs http and socket of your own, with your servers in Go, invoked likewise."`
	Limits     string        `enum:"home,aws" default:"home" help:"Which limits hold: home, those of one machine; aws, those of AWS's gateways. Function programs always have those of AWS."`
	Access     string        `enum:",keys,idp,open" default:"" help:"Who is let in: keys, who has an API key; idp, also who has a token of the identity provider under x-dormouse.access of the servers file; open, everybody who reaches an endpoint. Without it, open if the endpoints are on loopback, and else keys."`
	SleepAfter time.Duration `default:"10s" help:"A function program that had nothing to do for this long is stopped."`
	Idle       time.Duration `default:"120s" help:"A box that had nothing to do for this long says bye; servers may set their own."`
	JSON       bool          `help:"Print events as JSON lines."`

	// Hidden flags, for tests and experiments.
	SocketIdle time.Duration `hidden:"" help:"A WebSocket connection on which nothing was said for this long is closed."`
	SocketLife time.Duration `hidden:"" help:"A WebSocket connection is closed when it is this old."`
	Cold       bool          `hidden:"" help:"Make the handlers anew for each message."`
	Disorder   time.Duration `hidden:"" help:"Delay each WebSocket message by chance, up to this, before its function is invoked."`
}

// Validate checks that a folder in --functions exists.
func (c *runCommand) Validate() error {
	switch c.Functions {
	case local.FunctionsInside, local.FunctionsProcess:
		return nil
	}
	if info, err := os.Stat(c.Functions); err != nil || !info.IsDir() {
		return fmt.Errorf("--functions is %q; want inside, process, or a folder with programs http and socket", c.Functions)
	}
	return nil
}

func (c *runCommand) Run(t *terminal) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := profile.Serve(os.Getenv(profile.Environment), "dormouse"); err != nil {
		return err
	}
	bin, err := os.Executable()
	if err != nil {
		return fmt.Errorf("where this program is: %w", err)
	}
	store, more, err := useTable(ctx, c.Store)
	if err != nil {
		return err
	}
	functions, own := c.Functions, ""
	if functions != local.FunctionsInside && functions != local.FunctionsProcess {
		functions, own = local.FunctionsProcess, functions
	}
	cfg := local.Config{
		Listen: c.Listen, Sockets: c.Sockets, PublicURL: c.PublicURL, Origins: c.Origins, Store: store, Servers: c.Servers, EnvFiles: c.EnvFile, Strict: c.Strict, Data: c.Data,
		Access: c.Access, Idle: c.Idle, Limits: c.Limits, SocketIdle: c.SocketIdle, SocketLife: c.SocketLife, Cold: c.Cold,
		Functions: functions, Programs: filepath.Dir(bin), Own: own, SleepAfter: c.SleepAfter,
		Runner: []string{bin, "runner"}, JSON: c.JSON, Environ: append(os.Environ(), more...), Out: t.out, Log: t.err,
	}
	if c.Disorder > 0 {
		cfg.Shuffle = &sockets.Shuffle{Seed: rand.Uint64(), MaxDelay: c.Disorder}
	}
	return local.Run(ctx, cfg)
}

func main() {
	sandbox.Enter(os.Args)
	if len(os.Args) > 1 && os.Args[1] == "run" {
		slack.Take(os.Args, os.Environ())
	}
	os.Exit(execute(os.Args[1:], &terminal{out: os.Stdout, err: os.Stderr, now: time.Now}))
}

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // the command line is invalid, and nothing was done
)

// exited ends a parse early, after help or the version was printed.
type exited int

// execute runs one command line and returns the exit code. It writes an error as one
// line to t.err; for a wrong command line, the line names the help to read.
func execute(args []string, t *terminal) (code int) {
	defer func() {
		if r := recover(); r != nil {
			early, ok := r.(exited)
			if !ok {
				panic(r)
			}
			code = int(early)
		}
	}()
	var c commands
	parser := kong.Must(&c, kong.Name("dormouse"), kong.Description("MCP servers that sleep between messages."),
		kong.Writers(t.out, t.err), kong.Exit(func(code int) { panic(exited(code)) }), kong.Vars{"version": builtAs().line()}, kong.Bind(t))
	k, err := parser.Parse(args)
	var wrong *kong.ParseError
	switch {
	case errors.As(err, &wrong):
		help := "dormouse"
		if n := wrong.Context.Selected(); n != nil {
			help = n.FullPath()
		}
		_, _ = fmt.Fprintf(t.err, "dormouse: error: %v; see %s --help\n", err, help)
		return exitUsage
	case err == nil:
		err = k.Run()
	}
	if err != nil {
		_, _ = fmt.Fprintf(t.err, "dormouse: error: %v\n", err)
		return exitFailed
	}
	return exitDone
}
