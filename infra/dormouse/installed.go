package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/infra/systemd"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

type serviceCommand struct {
	Install   installServiceCommand   `cmd:"" help:"Have the system keep dormouse run up: by systemd, as root for all users, or by launchd."`
	Status    statusServiceCommand    `cmd:"" help:"Show the state of the service, as the system knows it."`
	Logs      logsServiceCommand      `cmd:"" help:"Print what the service has written."`
	Uninstall uninstallServiceCommand `cmd:"" help:"Stop the service, and remove its files. Servers file and data stay."`
}

// serviceManager installs services on this machine, by systemd or launchd. They belong to one
// user, or with systemd as root, to the system.
type serviceManager struct {
	t       *terminal
	system  string // as runtime.GOOS
	uid     int
	home    string // the user's home folder
	config  string // the user's configuration folder
	etc     string // folder of systemd's system units
	program string // path of the dormouse program
	environ []string
}

// label is the service's name in launchd.
const label = "mcp.dormouse"

func serviceManagerOf(t *terminal) (*serviceManager, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	config, err := os.UserConfigDir()
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// If dormouse is on the PATH, use that path: unlike the path of this program, it stays the
	// same when a package manager installs another version.
	if found, err := exec.LookPath("dormouse"); err == nil && filepath.IsAbs(found) && same(found, program) {
		program = found
	}
	return &serviceManager{t: t, system: runtime.GOOS, uid: os.Getuid(), home: home, config: config, etc: "/etc/systemd/system", program: program, environ: os.Environ()}, nil
}

// onService calls fn with the service manager of this machine.
func onService(t *terminal, fn func(context.Context, *serviceManager) error) error {
	m, err := serviceManagerOf(t)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	return fn(ctx, m)
}

// same reports whether two paths lead to the same file.
func same(a, b string) bool {
	one, errOne := os.Stat(a)
	two, errTwo := os.Stat(b)
	return errOne == nil && errTwo == nil && os.SameFile(one, two)
}

func (m *serviceManager) launchd() bool { return m.system == "darwin" }

// root reports whether the service belongs to the system and not to one user.
func (m *serviceManager) root() bool { return m.uid == 0 && !m.launchd() }

// tool runs systemctl, journalctl or launchctl, and writes its output to out.
func (m *serviceManager) tool(ctx context.Context, out io.Writer, name string, args ...string) error {
	if name != "launchctl" && !m.root() {
		args = slices.Concat([]string{"--user"}, args)
	}
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // a tool of the system
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &said
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("this machine has no %s: keep dormouse run up another way, as docs/vps.md and docs/container.md say", name)
		}
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, wire.OneLine(said.String()))
	}
	return nil
}

// domain returns the launchd domain of the user's services.
func (m *serviceManager) domain() string { return "gui/" + strconv.Itoa(m.uid) }

func (m *serviceManager) file() string {
	switch {
	case m.launchd():
		return filepath.Join(m.home, "Library", "LaunchAgents", label+".plist")
	case m.root():
		return filepath.Join(m.etc, "dormouse.service")
	default:
		return filepath.Join(m.config, "systemd", "user", "dormouse.service")
	}
}

// log returns the file to which launchd writes the output of the service.
func (m *serviceManager) log() string {
	return filepath.Join(m.home, "Library", "Logs", "dormouse.log")
}

type installServiceCommand struct {
	Servers string   `placeholder:"FILE" type:"path" help:"The servers file, by default servers.json in this folder, as root /etc/dormouse/servers.json."`
	Data    string   `placeholder:"DIR" type:"path" help:"The data folder, by default .dormouse beside the servers file, as root /var/lib/dormouse."`
	Flags   []string `arg:"" optional:"" passthrough:"" help:"Flags of dormouse run, after --, as in: dormouse service install -- --port 9000."`
}

// Run writes the files of the service, and starts it.
func (c *installServiceCommand) Run(t *terminal) error {
	return onService(t, c.install)
}

func (c *installServiceCommand) install(ctx context.Context, m *serviceManager) error {
	if len(c.Flags) > 0 && c.Flags[0] == "--" {
		c.Flags = c.Flags[1:]
	}
	if err := c.check(m); err != nil {
		return err
	}
	files := map[string]string{m.file(): m.unit(c)}
	switch {
	case m.launchd():
		files[m.file()] = m.plist(c)
	case m.root():
		files = m.units(c)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // folders of the system, which others may read
			return err
		}
		mode := os.FileMode(0o600) // the file may contain the URL of a proxy, with a password
		if m.root() {
			mode = 0o644
		}
		if err := durable.WriteFile(path, []byte(files[path]), mode); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(m.t.err, "%s is written.\n", path)
	}
	if err := m.start(ctx); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(m.t.out, "The service runs, and starts again after a crash and a restart of the machine: dormouse service status, logs, uninstall")
	if !m.launchd() && !m.root() {
		_, _ = fmt.Fprintln(m.t.err, "It ends when you log out, unless you type: loginctl enable-linger")
	}
	return nil
}

// check fills in defaults, and returns an error if the service could not run.
func (c *installServiceCommand) check(m *serviceManager) error {
	if m.launchd() && m.uid == 0 {
		return errors.New("launchd starts it for one user: type this as that user, without sudo")
	}
	folder, data := ".", ""
	if m.root() {
		folder, data = "/etc/dormouse", "/var/lib/dormouse"
		for _, hidden := range []string{"/root/", "/home/"} {
			if strings.HasPrefix(m.program, hidden) {
				return fmt.Errorf("the service cannot see %s: install -m 755 %s /usr/local/bin/, and type this again", m.program, quoted(m.program))
			}
			if strings.HasPrefix(c.Servers, hidden) {
				return fmt.Errorf("the service cannot see %s: put the file into /etc/dormouse, and leave --servers out", c.Servers)
			}
		}
		if c.Data != "" && c.Data != data {
			return errors.New("the service of the system has its data in /var/lib/dormouse: leave --data out")
		}
	}
	var err error
	if c.Servers, err = filepath.Abs(cmp.Or(c.Servers, filepath.Join(folder, "servers.json"))); err != nil {
		return err
	}
	c.Data = cmp.Or(c.Data, data, filepath.Join(filepath.Dir(c.Servers), defaultData))
	if !exists(c.Servers) {
		return fmt.Errorf("there is no %s: make it with dormouse add, or name another with --servers", c.Servers)
	}
	var all commands
	parser := kong.Must(&all, kong.Name("dormouse"), kong.Vars{"version": "", "platform": ""}, kong.Exit(func(int) {}), kong.Writers(io.Discard, io.Discard))
	if _, err := parser.Parse(slices.Concat([]string{"run"}, c.Flags)); err != nil {
		return failure{exitUsage, fmt.Errorf("dormouse run %s: %w", strings.Join(c.Flags, " "), err)}
	}
	if m.root() && (all.Run.Listen != "" || all.Run.Sockets != "") {
		return errors.New("the service of the system listens where its socket unit says: leave --listen and --sockets out, and afterwards type systemctl edit dormouse.socket (docs/vps.md)")
	}
	return nil
}

// start makes systemd or launchd load the files, and starts or restarts the service.
func (m *serviceManager) start(ctx context.Context) error {
	if m.launchd() {
		_ = m.tool(ctx, io.Discard, "launchctl", "bootout", m.domain()+"/"+label) // fails if the service does not run
		return m.tool(ctx, io.Discard, "launchctl", "bootstrap", m.domain(), m.file())
	}
	units := []string{"dormouse.service"}
	if m.root() {
		units = []string{"dormouse.socket", "dormouse.service"}
	}
	for _, args := range [][]string{{"daemon-reload"}, slices.Concat([]string{"enable"}, units), slices.Concat([]string{"restart"}, units)} {
		if err := m.tool(ctx, io.Discard, "systemctl", args...); err != nil {
			return fmt.Errorf("%w (dormouse service logs)", err)
		}
	}
	return nil
}

// variables returns the environment variables that the service gets: PATH, which systemd and
// launchd set differently, and those for proxies and certificates.
func (m *serviceManager) variables() (all [][2]string) {
	for _, kv := range m.environ {
		if name, value, ok := strings.Cut(kv, "="); ok && (name == "PATH" || provision.IsNetwork(name)) {
			all = append(all, [2]string{name, value})
		}
	}
	slices.SortFunc(all, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return all
}

func (m *serviceManager) unit(c *installServiceCommand) string {
	var b strings.Builder
	b.WriteString(`# Dormouse for one user. dormouse service install has written it.
[Unit]
Description=Dormouse, MCP servers that sleep between messages
Documentation=https://github.com/dormouse-mcp/dormouse/blob/main/docs/operations.md

[Service]
Type=notify
`)
	_, _ = fmt.Fprintf(&b, "WorkingDirectory=%s\n", percent(filepath.Dir(c.Servers)))
	_, _ = fmt.Fprintf(&b, "ExecStart=%s\n", m.line(c, c.Data))
	b.WriteString(`ExecReload=/bin/kill -HUP $MAINPID
TimeoutStopSec=60
Restart=on-failure
UMask=0077
`)
	for _, v := range m.variables() {
		_, _ = fmt.Fprintf(&b, "Environment=%s\n", inUnit(v[0]+"="+v[1], false))
	}
	b.WriteString("\n[Install]\nWantedBy=default.target\n")
	return b.String()
}

// units returns the system units of package systemd, with this machine's paths of the program and
// the servers file.
func (m *serviceManager) units(c *installServiceCommand) map[string]string {
	var b strings.Builder
	for line := range strings.Lines(systemd.Service) {
		if strings.HasPrefix(line, "ExecStart=") {
			line = "ExecStart=" + m.line(c, "%S/dormouse") + " $DORMOUSE_FLAGS\n"
		}
		b.WriteString(line)
	}
	return map[string]string{m.file(): b.String(), filepath.Join(m.etc, "dormouse.socket"): systemd.Socket}
}

// line returns the command line for a unit file. The argument data is c.Data, or an expression for
// systemd, which stays without quotes.
func (m *serviceManager) line(c *installServiceCommand, data string) string {
	words := []string{inUnit(m.program, true), "run", "--servers", inUnit(c.Servers, true), "--data", data}
	if data == c.Data {
		words[len(words)-1] = inUnit(data, true)
	}
	for _, f := range c.Flags {
		words = append(words, inUnit(f, true))
	}
	return strings.Join(words, " ")
}

// percent escapes "%", which begins specifiers in unit files.
func percent(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// inUnit quotes a word for a systemd unit file. If command is true, the word is on a command line,
// where systemd also expands variables.
func inUnit(word string, command bool) string {
	word = percent(word)
	if command {
		word = strings.ReplaceAll(word, "$", "$$")
	}
	if word != "" && !strings.ContainsAny(word, " \t\n\"'\\;") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(word) + `"`
}

func (m *serviceManager) plist(c *installServiceCommand) string {
	text := func(s string) string {
		var b strings.Builder
		_ = xml.EscapeText(&b, []byte(s)) // writing to a Builder cannot fail
		return "<string>" + b.String() + "</string>"
	}
	var args, env strings.Builder
	for _, word := range slices.Concat([]string{m.program, "run", "--servers", c.Servers, "--data", c.Data}, c.Flags) {
		args.WriteString("    " + text(word) + "\n")
	}
	for _, v := range m.variables() {
		env.WriteString("    " + strings.ReplaceAll(text(v[0]), "string>", "key>") + text(v[1]) + "\n")
	}
	return `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>` + text(label) + `
  <key>ProgramArguments</key>
  <array>
` + args.String() + `  </array>
  <key>WorkingDirectory</key>` + text(filepath.Dir(c.Servers)) + `
  <key>EnvironmentVariables</key>
  <dict>
` + env.String() + `  </dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key><false/>
  </dict>
  <key>ExitTimeOut</key><integer>60</integer>
  <key>Umask</key><integer>63</integer>
  <key>StandardOutPath</key>` + text(m.log()) + `
  <key>StandardErrorPath</key>` + text(m.log()) + `
</dict>
</plist>
`
}

type statusServiceCommand struct{}

// Run prints what systemd or launchd says about the service.
func (c *statusServiceCommand) Run(t *terminal) error {
	return onService(t, func(ctx context.Context, m *serviceManager) error { return m.status(ctx) })
}

func (m *serviceManager) status(ctx context.Context) error {
	if !exists(m.file()) {
		return failure{exitNotUp, errors.New("no service is installed: dormouse service install")}
	}
	args := []string{"systemctl", "--no-pager", "--lines=0", "status", "dormouse.service"}
	if m.launchd() {
		args = []string{"launchctl", "print", m.domain() + "/" + label}
	}
	if err := m.tool(ctx, m.t.out, args[0], args[1:]...); err != nil {
		return failure{exitNotUp, fmt.Errorf("the service is not up: %w", err)}
	}
	return nil
}

type logsServiceCommand struct {
	Follow bool `short:"f" help:"Go on with new output until Ctrl-C."`
}

// Run prints the log of the service.
func (c *logsServiceCommand) Run(t *terminal) error {
	return onService(t, c.print)
}

func (c *logsServiceCommand) print(ctx context.Context, m *serviceManager) error {
	const lines = "100"
	args := []string{"journalctl", "--unit", "dormouse.service", "--no-pager", "--output", "cat", "--lines", lines}
	if c.Follow {
		args = append(args, "--follow")
	}
	if m.launchd() {
		args = []string{"-n", lines, m.log()}
		if c.Follow {
			args = slices.Concat([]string{"-F"}, args)
		}
		cmd := exec.CommandContext(ctx, "tail", args...) //nolint:gosec // a file of our own
		cmd.Stdout, cmd.Stderr = m.t.out, m.t.err
		return cmd.Run()
	}
	err := m.tool(ctx, m.t.out, args[0], args[1:]...)
	if ctx.Err() != nil {
		return nil // the user has pressed Ctrl-C
	}
	return err
}

type uninstallServiceCommand struct{}

// Run stops the service, and removes its files.
func (c *uninstallServiceCommand) Run(t *terminal) error {
	return onService(t, func(ctx context.Context, m *serviceManager) error { return m.uninstall(ctx) })
}

func (m *serviceManager) uninstall(ctx context.Context) error {
	if !exists(m.file()) {
		return errors.New("no service is installed")
	}
	files := []string{m.file()}
	var err error
	switch {
	case m.launchd():
		err = m.tool(ctx, io.Discard, "launchctl", "bootout", m.domain()+"/"+label)
	case m.root():
		files = append(files, filepath.Join(m.etc, "dormouse.socket"))
		err = m.tool(ctx, io.Discard, "systemctl", "disable", "--now", "dormouse.socket", "dormouse.service")
	default:
		err = m.tool(ctx, io.Discard, "systemctl", "disable", "--now", "dormouse.service")
	}
	if err != nil {
		_, _ = fmt.Fprintf(m.t.err, "The system could not stop it: %v\n", err)
	}
	for _, path := range files {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		_, _ = fmt.Fprintf(m.t.err, "%s is removed.\n", path)
	}
	if !m.launchd() {
		err = errors.Join(err, m.tool(ctx, io.Discard, "systemctl", "daemon-reload"))
	}
	if err != nil {
		return failure{exitFailed, nil}
	}
	_, _ = fmt.Fprintln(m.t.out, "The service is gone. The servers file and the data folder stay.")
	return nil
}
