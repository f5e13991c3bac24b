// Command dormouse is the command line: it hosts the servers of a servers file
// on this machine, shows what runs and which sessions there are, and manages
// API keys.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/profile"
	"github.com/dormouse-mcp/dormouse/shared/slack"
)

type commands struct {
	Run  runCommand  `cmd:"" help:"Host the servers of a servers file on this machine."`
	PS   psCommand   `cmd:"" name:"ps" help:"Show functions, boxes, processes and sessions."`
	Logs logsCommand `cmd:"" help:"Show what the processes of a server or session said on stderr."`
	Bill billCommand `cmd:"" help:"Show what AWS would have billed for what this machine has done."`
	Keys keysCommand `cmd:"" help:"Make, show and revoke API keys."`
}

type runCommand struct {
	Listen     string        `default:"127.0.0.1:8787" help:"Address of the endpoint."`
	Sockets    string        `help:"Address of the endpoint for WebSocket clients. Without it, the port behind that of --listen."`
	Servers    string        `default:"servers.json" type:"path" help:"The servers file, in the mcpServers form."`
	Data       string        `default:".dormouse" type:"path" help:"Folder for sessions, events and the ticket secret."`
	Store      string        `help:"Where sessions are kept: sqlite:PATH, or dynamodb:TABLE[?endpoint=URL&region=NAME] with the credentials in the environment (a table that is missing at an endpoint of its own is made). Without it, a SQLite file in the data folder."`
	Functions  string        `type:"existingdir" help:"Folder with programs of your own, http and socket: functions with your servers in Go. What is not there is the one that comes with Dormouse."`
	Access     string        `enum:",keys,open" default:"" help:"Who is let in: keys, who has an API key; open, everybody who reaches an endpoint. Without it, open if the endpoints are on loopback, and else keys."`
	SleepAfter time.Duration `default:"10s" help:"A function process that had nothing to do for this long is stopped."`
	Idle       time.Duration `default:"120s" help:"A box that had nothing to do for this long says bye; servers may set their own."`
	Concurrent bool          `help:"Let one function process take 16 invocations at once: lighter under load, but not how Lambda does it."`
	JSON       bool          `help:"Print events as JSON lines."`

	// For tests and for the curious.
	SocketIdle time.Duration `default:"10m" hidden:"" help:"A WebSocket connection on which nothing was said for this long is closed."`
	SocketLife time.Duration `default:"2h" hidden:"" help:"A WebSocket connection is closed when it is this old."`
	Disorder   time.Duration `hidden:"" help:"Delay each WebSocket message by chance, up to this, before its function is invoked."`
}

func (c *runCommand) Run() error {
	slack.Take(slack.Several, os.Args, os.Environ())
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
	cfg := local.Config{
		Listen: c.Listen, Sockets: c.Sockets, Store: store, Servers: c.Servers, Data: c.Data,
		Access: c.Access, SleepAfter: c.SleepAfter, Idle: c.Idle,
		Concurrent: c.Concurrent, JSON: c.JSON, Programs: filepath.Dir(bin), Own: c.Functions, Environ: append(os.Environ(), more...),
		Out: os.Stdout, Log: os.Stderr,
		Limits: local.WebSocketLimits{Idle: c.SocketIdle, Life: c.SocketLife},
	}
	if c.Disorder > 0 {
		cfg.Shuffle = &local.Shuffle{Seed: rand.Uint64(), MaxDelay: c.Disorder}
	}
	return local.Run(ctx, cfg)
}

func main() {
	var c commands
	k := kong.Parse(&c, kong.Name("dormouse"), kong.Description("MCP servers that sleep between messages."), kong.UsageOnError())
	k.FatalIfErrorf(k.Run())
}
