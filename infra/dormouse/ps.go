package dormouse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

type psCommand struct {
	serverFlag
	principalFlag
	All bool `help:"Show also stopped processes, and every process of the operating system in each box."`
	target
	printing
}

// report is the JSON output of dormouse ps.
type report struct {
	Running  bool         `json:"running"` // whether dormouse run is up
	Servers  []api.Server `json:"servers"`
	Sessions int          `json:"sessions"`                // number of open sessions
	More     bool         `json:"more_sessions,omitempty"` // not all sessions were counted, because there are too many
	api.Status
}

// Run prints the processes of servers.
func (c *psCommand) Run(t *terminal) error {
	var r report
	err := use(context.Background(), c, patience, func(ctx context.Context, to *client) (err error) {
		r.Running = true
		if r.Servers, err = to.servers(ctx); err != nil {
			return err
		}
		return to.call(ctx, "GET", "processes", nil, &r.Status)
	})
	switch {
	case isNotUp(err) && !r.Running && c.JSON:
		r.Servers, r.Boxes, r.Processes = []api.Server{}, []api.Box{}, []api.Process{}
		return errors.Join(t.printJSON(r), err)
	case err != nil:
		return err
	}
	for _, s := range r.Servers {
		r.Sessions += s.Sessions
		r.More = s.MoreSessions
	}
	c.choose(&r)
	if c.Server != "" && len(r.Processes)+len(r.Boxes) == 0 {
		if _, err := serverOf(r.Servers, c.Server); err != nil {
			return err
		}
	}
	return c.show(t, r, func() error {
		return r.print(t.out, t.now(), c.All, c.All || c.Server != "" || c.Principal != "")
	})
}

// choose removes what the flags do not select.
func (c *psCommand) choose(r *report) {
	r.Processes = slices.DeleteFunc(r.Processes, func(p api.Process) bool {
		return c.Server != "" && p.Server != c.Server || c.Principal != "" && p.Principal != c.Principal || !c.All && !c.JSON && p.State == "stopped" && p.Detail == ""
	})
	r.Boxes = slices.DeleteFunc(r.Boxes, func(b api.Box) bool { return c.Server != "" && b.Server != c.Server })
}

// mostListed is how many processes ps lists without --all, --server and --principal.
const mostListed = 30

// print prints the processes, and the boxes if boxes is set. It prints at most
// mostListed processes, unless whole is set.
func (r report) print(out io.Writer, now time.Time, boxes, whole bool) error {
	return table(out, func(say func(string, ...any)) {
		switch {
		case r.Processes == nil && len(r.Boxes) > 0:
			say("SERVER\tSTATE\tTENANT\tSINCE\n")
			for _, b := range r.Boxes {
				tenant, _ := storage.BoxID(b.Box).Parts()
				say("%s\t%s\t%s\t%s\n", b.Server, b.State, tenant, ago(now, b.Started))
			}
		case len(r.Processes) > 0:
			say("SERVER\tSTATE\tWHO\tCLIENT\tUP\tLAST-CALL\tMEM\tWHY\n")
			for i, p := range r.Processes {
				if i == mostListed && !whole {
					say("%d more: dormouse ps --all, --server NAME or --principal WHO\n", len(r.Processes)-i)
					break
				}
				printProcess(say, p, now)
			}
		default:
			say("0 processes\n")
		}
		if boxes {
			r.printAll(say, now)
		}
		n := count(r.Sessions, "session")
		if r.More {
			n = "at least " + n
		}
		say("\n%s; dormouse sessions lists them.\n", n)
	})
}

func printProcess(say func(string, ...any), p api.Process, now time.Time) {
	state, last, mem := stateOf(p), "–", "–"
	if p.Phase != "" {
		state += " (" + p.Phase + ")"
	}
	if p.LastCall != nil {
		last = ago(now, *p.LastCall)
	}
	if p.Memory > 0 {
		mem = fmt.Sprintf("%d MB", p.Memory>>20)
	}
	say("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Server, state, cmp.Or(p.Principal, "–"), cmp.Or(p.Client, "–"), span(now.Sub(p.Since)), last, mem, clip(p.Why(), 100))
}

// stateOf returns the state of a process, in the words that dormouse list uses.
func stateOf(p api.Process) string {
	switch p.State {
	case "staging", "started":
		return api.Starting
	case "ready":
		return api.Awake
	case "exited":
		return api.Failed
	default:
		return api.Asleep
	}
}

// printAll prints the boxes, and the processes of the operating system in each.
func (r report) printAll(say func(string, ...any), now time.Time) {
	if len(r.Boxes) > 0 && r.Processes != nil {
		say("\nBOX\tPID\tUP\tPROCESSES\n")
		for _, b := range r.Boxes {
			say("%s\t%d\t%s\t%d\n", b.Box, b.PID, span(now.Sub(b.Started)), len(b.Processes))
			for _, p := range b.Processes {
				say("  %s\t%d\t%s\t\n", p.Command, p.PID, span(now.Sub(p.Started)))
			}
		}
	}
}

// count returns a number with its noun, for example "1 session" or "2 sessions".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

type sessionsGroup struct {
	List sessionsCommand `cmd:"" default:"withargs" help:"Show the sessions and their principals."`
	Give giveCommand     `cmd:"" help:"Hand a session with its workspace over to another principal of its tenant."`
}

type sessionsCommand struct {
	serverFlag
	principalFlag
	All bool `help:"Show also sessions that ended in the last hour."`
	placed
	printing
}

// Run prints the sessions, which exist whether or not a process runs.
func (c *sessionsCommand) Run(t *terminal) error {
	query := url.Values{}
	for name, value := range map[string]string{"server": c.Server, "principal": c.Principal} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return use(context.Background(), c, time.Minute, func(ctx context.Context, to *client) error {
		all, more, err := to.sessions(ctx, query, c.JSON)
		if err != nil {
			return err
		}
		if err := to.mistyped(ctx, c.Server, len(all)); err != nil {
			return err
		}
		slices.SortStableFunc(all, func(a, b api.Session) int { return b.Created.Compare(a.Created) })
		if !c.All && !c.JSON {
			all = slices.DeleteFunc(all, func(s api.Session) bool { return s.State == "ended" })
		}
		return c.show(t, all, func() error {
			err := printSessions(t.out, all, t.now())
			if more {
				_, _ = fmt.Fprintf(t.err, "there are more than these: name a --server or --principal, or take --json, which lists all\n")
			}
			return err
		})
	})
}

func printSessions(out io.Writer, all []api.Session, now time.Time) error {
	return table(out, func(say func(string, ...any)) {
		say("SESSION\tSERVER\tSTATE\tWHO\tCLIENT\tAGE\tLAST MESSAGE\tENDS IN\n")
		for _, s := range all {
			state := s.State
			if s.Quit != "" {
				state += " (" + s.Quit + ")"
			}
			say("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", short(s.ID), s.Server, state, s.Principal, cmp.Or(s.Client, "–"),
				span(now.Sub(s.Created)), ago(now, s.LastMessage), span(s.Expires.Sub(now)))
		}
	})
}

// short returns the beginning of a session id or of a principal's hash, long enough to recognize
// it.
func short(name string) string {
	if kind, hash, ok := strings.Cut(name, "-"); ok && kind == "principal" {
		return kind + "-" + hash[:min(8, len(hash))]
	}
	return name[:min(12, len(name))]
}

// clipReason shortens a reason to about limit characters, and marks the cut with "…". It keeps
// parentheses at the end, such as "(servers.json:3:5)".
func clipReason(why string, limit int) string {
	place := ""
	if at := strings.LastIndex(why, " ("); at > 0 && strings.HasSuffix(why, ")") && len(why)-at < limit/2 {
		why, place = why[:at], why[at:]
	}
	return clip(why, limit-len(place)) + place
}

func clip(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}
