package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sqlitestore"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

type psCommand struct {
	Data  string `default:".dormouse" type:"path" help:"Folder that dormouse run was given."`
	Store string `help:"As dormouse run was given. Sessions are shown from SQLite only."`
	JSON  bool   `help:"Print one JSON object."`
}

// report is the JSON output of ps. Times are RFC 3339, UTC.
type report struct {
	Running bool `json:"running"` // is dormouse run up?
	local.MachineStatus
	Servers []serverLine `json:"servers"` // none if dormouse run is not up
	// Processes are the processes of servers, as their boxes report them. They include
	// processes that are staging, and those that failed or were stopped while the box
	// is still up.
	Processes []processLine `json:"processes"`
	Sessions  []sessionLine `json:"sessions"` // null if they are not in SQLite
}

type processLine struct {
	Box      string    `json:"box"`
	Process  string    `json:"process"` // its session, or those that share it
	PID      int       `json:"pid,omitempty"`
	State    string    `json:"state"`           // staging, started, ready, stopped, exited
	Phase    string    `json:"phase,omitempty"` // in which it failed
	Detail   string    `json:"detail,omitempty"`
	Since    time.Time `json:"since"` // when it reached that state
	Restarts int       `json:"restarts"`
}

type sessionLine struct {
	ID          string    `json:"id"`
	Server      string    `json:"server"`
	State       string    `json:"state"`
	Quit        string    `json:"quit,omitempty"`
	Client      string    `json:"client,omitempty"`
	Version     string    `json:"protocol_version"`
	Created     time.Time `json:"created"`
	LastMessage time.Time `json:"last_message"`
	Expires     time.Time `json:"expires"`
}

func (c *psCommand) Run(t *terminal) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var r report
	var err error
	if r.MachineStatus, r.Running, err = local.Status(ctx, c.Data); err != nil {
		return err
	}
	if r.Processes, err = processes(filepath.Join(c.Data, local.LogFolder), r.Boxes); err != nil {
		return err
	}
	r.Servers = summary(r.MachineStatus, r.Processes)
	path, ok, err := local.SQLite(c.Store, c.Data)
	if err != nil {
		return err
	}
	if ok {
		if r.Sessions, err = sessions(ctx, path); err != nil {
			return err
		}
	}
	if c.JSON {
		return t.printJSON(r)
	}
	return r.print(t.out, t.now())
}

// processes reads the files that runners write beside their logs.
func processes(folder string, boxes []local.BoxStatus) ([]processLine, error) {
	all := []processLine{}
	for _, b := range boxes {
		text, err := os.ReadFile(filepath.Join(folder, b.Server, b.Task+".processes"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the box has had no process yet, or has ended meanwhile
		}
		var own []processLine
		if err == nil {
			err = json.Unmarshal(text, &own)
		}
		if err != nil {
			return nil, fmt.Errorf("read how the processes of box %s are: %w", b.Box, err)
		}
		for _, p := range own {
			p.Box = b.Box
			all = append(all, p)
		}
	}
	return all, nil
}

// sessions reads the sessions from the store, which works whether anything runs or
// not.
func sessions(ctx context.Context, path string) ([]sessionLine, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("there are no sessions: %w; name the folder with --data, or the store with --store", err)
	}
	store, err := sqlitestore.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	lines := []sessionLine{}
	for after := session.ID(""); ; {
		page, err := store.List(ctx, "", after, 1000)
		if err != nil || len(page) == 0 {
			return lines, err
		}
		for _, s := range page {
			last, err := lastMessage(ctx, store, s)
			if err != nil {
				return nil, err
			}
			lines = append(lines, line(s, last))
		}
		after = page[len(page)-1].ID
	}
}

// lastMessage returns when the newest request came. The session record is older: it
// is written far less often, to save writes.
func lastMessage(ctx context.Context, store session.Store, s session.Session) (time.Time, error) {
	newest, err := store.Newest(ctx, s.ID)
	if err != nil {
		return time.Time{}, err
	}
	if t := newest.Time(); t.After(s.Used) {
		return t, nil
	}
	return s.Used, nil
}

func line(s session.Session, last time.Time) sessionLine {
	name, _ := wire.String(wire.Lookup(s.Init, "clientInfo", "name"))
	return sessionLine{
		ID: string(s.ID), Server: s.Server, State: string(s.State), Quit: string(s.Quit), Client: name, Version: s.Version,
		Created: s.Created.UTC(), LastMessage: last.UTC(), Expires: s.Expires.UTC(),
	}
}

func (r report) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	if !r.Running {
		say("dormouse run is not up: 0 processes\n")
	}
	if len(r.Servers) > 0 {
		say("SERVER\tSTATE\tBOXES\tPROCESSES\tWHY\n")
		for _, s := range r.Servers {
			say("%s\t%s\t%d\t%d\t%s\n", s.Name, s.State, s.Boxes, s.Processes, clip(s.Why, 100))
		}
		say("\n")
	}
	if len(r.Functions) > 0 {
		say("FUNCTION\tPID\tSTATE\tUP\tINVOCATIONS\n")
		for _, f := range r.Functions {
			say("%s\t%d\t%s\t%s\t%d\n", f.Name, f.PID, f.State, age(now, f.Since), f.Invocations)
		}
		say("\n")
	}
	if len(r.Boxes) > 0 {
		say("BOX\tSERVER\tPID\tUP\tPROCESSES\n")
		for _, b := range r.Boxes {
			say("%s\t%s\t%d\t%s\t%d\n", b.Box, b.Server, b.PID, age(now, b.Started), len(b.Processes))
			for _, p := range b.Processes {
				say("  %s\t\t%d\t%s\t\n", p.Command, p.PID, age(now, p.Started))
			}
		}
		say("\n")
	}
	if len(r.Processes) > 0 {
		say("PROCESS\tBOX\tPID\tSTATE\tFOR\tRESTARTS\tWHY\n")
		for _, p := range r.Processes {
			state := p.State
			if p.Phase != "" {
				state += " (" + p.Phase + ")"
			}
			why, _, _ := strings.Cut(p.Detail, "\n")
			say("%s\t%s\t%d\t%s\t%s\t%d\t%s\n", short(p.Process), p.Box, p.PID, state, age(now, p.Since), p.Restarts, clip(why, 100))
		}
		say("\n")
	}
	if r.Sessions == nil {
		say("The sessions are in another store.\n")
		return w.Flush()
	}
	say("SESSION\tSERVER\tSTATE\tCLIENT\tAGE\tLAST MESSAGE\tENDS IN\n")
	for _, s := range r.Sessions {
		state := s.State
		if s.Quit != "" {
			state += " (" + s.Quit + ")"
		}
		say("%s\t%s\t%s\t%s\t%s\t%s ago\t%s\n", short(s.ID), s.Server, state, s.Client,
			age(now, s.Created), age(now, s.LastMessage), s.Expires.Sub(now).Round(time.Minute))
	}
	return w.Flush()
}

// short returns enough of a session's id, or a principal's hash, to recognize it.
func short(name string) string {
	if kind, hash, ok := strings.Cut(name, "-"); ok && kind == "principal" {
		return kind + "-" + hash[:min(8, len(hash))]
	}
	return name[:min(12, len(name))]
}

// clip cuts a text to at most most characters.
func clip(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

func age(now, since time.Time) time.Duration { return max(0, now.Sub(since)).Round(time.Second) }
