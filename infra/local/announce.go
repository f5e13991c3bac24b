package local

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// announce reports that the endpoints are open.
func announce(m *machine) {
	warnings := m.file.news()
	for _, w := range warnings {
		m.log.Warn("the servers file", "why", w)
	}
	if names := guests(m.servers.Load()); names != nil {
		m.log.Info("servers are confined to the network and a workspace", "servers", names)
	}
	if left := m.leftToEngines(); left != "" {
		m.log.Info("a box cannot follow a word of docker run", "why", left)
	}
	for _, name := range m.served() {
		if m.cfg.JSON == nil {
			break
		}
		socket := strings.Replace(m.public.address(1), "http", "ws", 1) + "/" + socketStage + "?server=" + url.QueryEscape(name)
		// An error is ignored: there is no better place to report it.
		_ = json.NewEncoder(m.cfg.JSON).Encode(map[string]any{
			"time": time.Now().UTC(), "kind": "ready", "name": name, "url": m.public.endpoint(name), "socket_url": socket,
		})
	}
	if m.cfg.Display == nil {
		return
	}
	s, prices := firstBlock(m, warnings), meter.Published()
	before := prices.Cost(m.ledger.Total())
	s.Cost = func() float64 { return prices.Cost(m.ledger.Total()) - before }
	m.cfg.Display.Start(s)
}

func (m *machine) leftToEngines() string {
	return LeftToEngines(m.servers.Load(), m.environ.get("PATH"), serversfile.FolderOf(m.cfg.Servers))
}

// LeftToEngines returns a sentence that names the servers that only a container engine, such as
// docker, can run, or "" if there are none. Each name comes with the option of "docker run" that
// dormouse-keeper does not support. The argument path is the machine's PATH; folder has the servers
// file.
func LeftToEngines(servers *serversfile.File, path, folder string) string {
	var left []string
	for _, name := range servers.Names() {
		s, _ := servers.Server(name)
		if _, ok, err := s.Sealable(); !ok || err == nil || s.Disabled || s.Box.Sealed {
			continue
		} else if _, missing := runner.Find(s, path, folder); missing == nil {
			word, _, _ := strings.Cut(err.Error(), ": ")
			left = append(left, name+" ("+word+")")
		}
	}
	if left == nil {
		return ""
	}
	return "Only a container engine can run " + strings.Join(left, ", ") + " (docs/sandbox.md)."
}

// endpoint returns the URL at which clients call a server.
func (l *listeners) endpoint(name string) string { return l.address(0) + "/" + name + "/mcp" }

// command returns a command line that the user can type.
func (c Config) command(line string) string { return cmp.Or(c.Command, "dormouse") + " " + line }

// firstBlock returns what [display.Terminal] prints at the start.
func firstBlock(m *machine, warnings []string) display.Start {
	servers := m.servers.Load()
	ctx, cancel := context.WithTimeout(context.Background(), countWithin)
	defer cancel()
	tools := recordsOfAll(ctx, m)
	s := display.Start{File: filepath.Base(m.cfg.Servers), Open: m.public.access() == AccessOpen, Who: m.public.whoMayCall(), One: m.public.address(0) + "/mcp"}
	for _, name := range servers.Names() {
		server, _ := servers.Server(name)
		line := display.Server{Name: name, Off: server.Disabled}
		if !server.Disabled {
			line.Address = m.public.endpoint(name)
			line.Tools = m.startText(server, tools)
		}
		s.Servers = append(s.Servers, line)
	}
	listed := map[string]bool{}
	for _, r := range servers.Rejected() {
		listed[r.String()] = true
		s.Servers = append(s.Servers, display.Server{Name: r.Name, Why: r.Cause(), Place: r.Place()})
	}
	if served := m.served(); len(served) > 0 {
		s.Console, s.Clients = m.cfg.command("open"), []string{m.cfg.command("connect claude-code"), "claude mcp add --transport http " + served[0] + " " + m.public.endpoint(served[0])}
	}
	if in, ok := m.functions.(*inprocess); ok {
		s.Preparing = slices.DeleteFunc(m.served(), func(name string) bool { return !in.preparing.has(name) })
	}
	for _, w := range warnings {
		if !listed[w] {
			s.Notes = append(s.Notes, "warning: "+strings.TrimPrefix(w, filepath.Dir(m.cfg.Servers)+"/"))
		}
	}
	if names := guests(servers); names != nil {
		s.Notes = append(s.Notes, "Confined to the network and a workspace: "+strings.Join(names, ", ")+` (docs/sandbox.md; "profile": "none" lets a server out).`)
	}
	if left := m.leftToEngines(); left != "" {
		s.Notes = append(s.Notes, left)
	}
	if watched := watchedOf(m); watched != nil {
		s.Notes = append(s.Notes, "A save starts anew: "+strings.Join(watched, ", "))
	}
	switch {
	case !s.Open:
		s.Notes = append(s.Notes, "Callers need an API key: "+m.cfg.command("keys create NAME --server SERVER"))
	case !m.public.onLoopback():
		s.Notes = append(s.Notes, openWarning)
	}
	if m.public.access() == AccessOAuth {
		s.Notes = append(s.Notes, "Or they sign in: their client opens a page in the browser.")
	}
	if m.public.access() == AccessIDP {
		s.Notes = append(s.Notes, "Or they sign in at the identity provider; their tokens are for the URL above.")
	}
	return s
}

func (l *listeners) whoMayCall() string {
	switch access := l.access(); {
	case access == AccessKeys:
		return "open to holders of an API key"
	case access == AccessIDP, access == AccessOAuth:
		return "open to those who sign in, and to holders of an API key"
	case l.private():
		return "open to this machine only"
	default:
		return "open to everybody"
	}
}

const openWarning = `warning: everybody who reaches this machine may call every server, web pages included (--access open on an address that is not loopback). Use --access keys, or name a loopback address with --listen.`

// LogFile is the name of the file in [LogFolder] with the log lines of dormouse run, as JSON.
const LogFile = "dormouse.jsonl"

// The bounds of LogFile: its size in MiB, and how many older files are kept.
const (
	logSize = 10
	logKept = 5
)

// openLog opens the log. Call it after the data folder is locked, so that only one
// program writes the file.
func (m *machine) openLog() {
	if m.cfg.Log != nil {
		return
	}
	file := &lumberjack.Logger{Filename: filepath.Join(m.folder.File(LogFolder), LogFile), MaxSize: logSize, MaxBackups: logKept}
	m.cfg.Log, m.logFile = &bestEffortLog{to: file, lost: logLost(m.recorder, m.folder.File(LogFolder))}, file
	m.log = slog.New(slog.NewJSONHandler(m.cfg.Log, nil))
}
