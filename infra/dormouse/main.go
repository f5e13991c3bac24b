// Package dormouse is the command line of dormouse.
package dormouse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/operate/timerslack"
)

// Program is a program with dormouse's command line.
type Program struct {
	Native    native.Servers // native servers that the program contains
	Functions local.Opener   // opens functions that handle messages in other processes; if nil, dormouse run handles them itself
}

// Main runs the command line of this process, and exits.
func (p Program) Main() {
	sandbox.Enter(os.Args)
	if len(os.Args) > 1 && os.Args[1] == "run" {
		timerslack.Take(os.Args, os.Environ())
	}
	os.Exit(execute(os.Args[1:], &terminal{program: p, in: os.Stdin, out: onTerminal(os.Stdout), err: onTerminal(os.Stderr), now: time.Now, ask: askOn(os.Stdin, os.Stderr), prepare: p.prepare, try: p.try}))
}

// operating has the commands that call the API for operators (package api). dormouse run and a stack
// on AWS serve that API.
type operating struct {
	List     listCommand    `cmd:"" group:"Servers" help:"Show the servers of the servers file, with their states and addresses."`
	Tools    toolsCommand   `cmd:"" group:"Servers" help:"Show the tools of a server with their arguments."`
	Accept   acceptCommand  `cmd:"" group:"Servers" help:"Take tools that are held back because their server changed them."`
	Call     callCommand    `cmd:"" group:"Start here" help:"Call a tool and print its result."`
	Inspect  inspectCommand `cmd:"" group:"Servers" help:"Open MCP Inspector on a server."`
	Calls    callsCommand   `cmd:"" group:"What happens" help:"Show which tools were called in the last 24 hours, by whom, and what failed."`
	PS       psCommand      `cmd:"" group:"What happens" name:"ps" help:"Show the processes that run, the newest first."`
	Sessions sessionsGroup  `cmd:"" group:"What happens" help:"Show the sessions and their principals, or hand one over."`
	Logs     logsCommand    `cmd:"" group:"What happens" help:"Print what servers wrote to stderr."`
	Stop     stopCommand    `cmd:"" group:"What happens" help:"Stop the processes of a server or session. The sessions stay."`
	End      endCommand     `cmd:"" group:"What happens" help:"End a session for good."`
	Keys     keysCommand    `cmd:"" group:"Callers" help:"Make, show, replace and revoke API keys."`
	Open     openCommand    `cmd:"" group:"What happens" help:"Open the console in the browser, or print a link to it."`
	Bill     billCommand    `cmd:"" group:"What happens" help:"Show what AWS would have billed for the work of this machine."`
	Reload   reloadCommand  `cmd:"" group:"Servers" help:"Make dormouse run read its servers file at once."`
	Push     pushCommand    `cmd:"" group:"Keeping and deploying" help:"Give the functions of a stack another servers file, without a deployment."`
}

type commands struct {
	Run     runCommand     `cmd:"" group:"Start here" help:"Host the servers of a servers file on this machine."`
	Add     addCommand     `cmd:"" group:"Start here" help:"Add a server to the servers file, install it and start it once."`
	Import  importCommand  `cmd:"" group:"Servers" help:"Import servers from the file of a client. Secrets are saved in .env."`
	Prepare prepareCommand `cmd:"" group:"Servers" help:"Install servers and start each once, side by side, so that no client waits for an install."`
	Upgrade upgradeCommand `cmd:"" group:"Servers" help:"List newer versions of packages, or take one and show how its tools differ."`
	Remove  removeCommand  `cmd:"" group:"Servers" help:"Remove servers from the servers file."`
	Enable  enableCommand  `cmd:"" group:"Servers" help:"Switch servers on again."`
	Disable disableCommand `cmd:"" group:"Servers" help:"Switch servers off, without removing them."`
	Env     envCommand     `cmd:"" group:"Servers" help:"Set variables of servers in .env."`
	Connect connectCommand `cmd:"" group:"Start here" help:"Print how to connect a client, or write the servers into the client's file."`
	Stdio   stdioCommand   `cmd:"" group:"Servers" help:"Be a stdio server that is the endpoint at a URL, for clients that know only stdio."`

	operating
	Secrets secretsCommand `cmd:"" group:"Callers" help:"Set, list and remove what users have at third parties."`
	Grants  grantsCommand  `cmd:"" group:"Callers" help:"List and revoke what users have allowed to clients by signing in."`

	Service serviceCommand `cmd:"" group:"Keeping and deploying" help:"Keep dormouse run up by systemd or launchd."`
	Backup  backupCommand  `cmd:"" group:"Keeping and deploying" help:"Back the data folder up into one file, without logs and installs, also while dormouse run is up."`
	Restore restoreCommand `cmd:"" group:"Keeping and deploying" help:"Bring a backup back into the data folder. dormouse run must not be up."`

	Check  checkCommand  `cmd:"" group:"Servers" help:"Show all mistakes in a servers file, without starting a server."`
	Image  imageCommand  `cmd:"" group:"Keeping and deploying" help:"Install servers for the image of the boxes."`
	Doctor doctorCommand `cmd:"" group:"What happens" help:"Check this machine, and change nothing. With SERVER start that server once."`
	Quotas quotasCommand `cmd:"" group:"Callers" help:"Show what tenants have used and may use, and set their limits."`

	Version    versionCommand    `cmd:"" group:"This program" help:"Show the version, and the Go version that built it."`
	Completion completionCommand `cmd:"" group:"This program" help:"Print a script for a shell: source <(dormouse completion bash)."`
	Complete   completeCommand   `cmd:"" hidden:"" help:"Print what may come next. Only the scripts of completion call this command."`
	Runner     runnerCommand     `cmd:"" hidden:"" help:"Run the runner of a box. Only dormouse run calls this command."`

	ShowVersion kong.VersionFlag `name:"version" help:"Show the version."`
}

// terminal is what commands use besides their flags. Tests replace all of it.
type terminal struct {
	program  Program
	in       io.Reader
	out, err io.Writer
	now      func() time.Time
	ask      asker // nil if the user cannot be asked
	prepare  func(context.Context, preparation) ([]outcome, error)
	try      func(context.Context, trying) (one, two tried, err error)
}

// otherNames maps words that users know from other programs to our commands.
var otherNames = map[string]string{"ls": "list", "rm": "remove", "up": "run", "start": "run", "serve": "run", "init": "add", "-v": "--version"}

// description is at the beginning of the help.
const description = `MCP servers that sleep between messages.

  dormouse add everything -- npx -y @modelcontextprotocol/server-everything
  dormouse run
  dormouse call everything echo message=hi    # in another terminal`

func (t *terminal) printJSON(v any) error {
	return printJSON(t.out, v, "  ")
}

// printJSON prints a value as JSON, on one line if indent is "".
func printJSON(out io.Writer, v any, indent string) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(escaped(text.Bytes()))
	return err
}

type runnerCommand struct{}

// Run runs the program of a box until it ends.
func (runnerCommand) Run() error {
	runner.Main()
	return nil
}

// exited is the exit code with which kong wants to exit, after it has printed help or the version.
// It is the value of a panic, because the parser would go on if Exit returned.
type exited int

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
	if len(args) == 0 {
		args = []string{"--help"}
	}
	if name := otherNames[args[0]]; name != "" {
		args = slices.Concat([]string{name}, args[1:])
	}
	if args[0] == "help" { // users expect this command, and kong has none
		args = slices.Concat(args[1:], []string{"--help"})
	}
	var c commands
	parser := kong.Must(&c, kong.Name("dormouse"), kong.Description(description),
		kong.Writers(raw(t.out), raw(t.err)), kong.Exit(func(code int) { panic(exited(code)) }), kong.Vars{"version": builtAs().line(), "platform": ownPlatform()}, kong.Bind(t), kong.ValueFormatter(helpOf))
	k, err := parser.Parse(markCommand(args))
	var wrong *kong.ParseError
	switch {
	case errors.As(err, &wrong):
		help := "dormouse"
		if n := wrong.Context.Selected(); n != nil {
			help = n.FullPath()
		}
		if flag := strings.TrimPrefix(err.Error(), "unknown flag "); help == "dormouse add" && (flag == "--transport" || flag == "--scope") { // as of claude mcp add
			err = fmt.Errorf("add needs no %s: leave it out, with its value", flag)
		} else if help == "dormouse add" && strings.HasPrefix(err.Error(), "unknown flag") && !slices.Contains(args, "--") { // kong takes the flags of the server's command for its own
			err = fmt.Errorf("%w; put the command of the server after --, as in: dormouse add NAME -- npx -y PACKAGE", err)
		}
		if strings.Contains(err.Error(), behind) {
			err = errors.New("only a name stands before --")
		}
		_, _ = fmt.Fprintf(t.err, "dormouse: error: %v; see %s --help\n", err, help)
		return exitUsage
	case err == nil:
		err = k.Run()
	}
	if err == nil {
		return exitDone
	}
	own := failure{exitFailed, err}
	if errors.As(err, &own); own.error != nil {
		_, _ = fmt.Fprintf(t.err, "dormouse: error: %v\n", err)
	}
	return own.code
}

// helpOf returns the help of an argument or flag. kong itself does not show the default of a flag
// with a placeholder.
func helpOf(v *kong.Value) string {
	text := kong.DefaultHelpValueFormatter(v)
	if f := v.Flag; f != nil && f.Default != "" && f.PlaceHolder != "" && f.PlaceHolder != f.Default && !f.IsBool() {
		text += " Default: " + f.Default + "."
	}
	return text
}
