package dormouse

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// patience is how long a command waits for the API.
const patience = 30 * time.Second

type listCommand struct {
	fileFlag
	target
	printing
}

// Run prints a line for each server of the servers file.
func (c *listCommand) Run(t *terminal) error {
	err := use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		info, err := to.info(ctx)
		if err != nil {
			return err
		}
		all, notes, err := to.serversFile(ctx)
		if err != nil {
			return err
		}
		return c.show(t, all, func() error {
			if err := printServers(t.out, all, cmp.Or(info.URL, to.base), t.now()); err != nil {
				return err
			}
			if err := printHeldOf(ctx, t.out, to, all); err != nil {
				return err
			}
			return printNotes(t.out, notes)
		})
	})
	if !isNotUp(err) || c.remote() || !exists(c.Servers) {
		return err
	}
	all, notes, problem := c.stored(context.Background())
	if problem != nil {
		return problem
	}
	return c.show(t, all, func() error {
		if err := errors.Join(printServers(t.out, all, "", t.now()), printNotes(t.out, notes)); err != nil {
			return err
		}
		_, err := fmt.Fprintf(t.out, "\n%s is not hosted now: dormouse run\n", filepath.Base(c.Servers))
		return err
	})
}

// notRunning is the state of a server if no dormouse run is up.
const notRunning = "not running"

// stored lists the servers in the file if no dormouse run is up. The result notes says which of
// them only a container engine can run.
func (c *listCommand) stored(ctx context.Context) (all []api.Server, notes []string, err error) {
	file, _, err := serversfile.LoadHere(c.Servers, os.LookupEnv)
	if err != nil {
		return nil, nil, err
	}
	if left := local.LeftToEngines(file, os.Getenv("PATH"), serversfile.FolderOf(c.Servers)); left != "" {
		notes = []string{left}
	}
	known := func(serversfile.Server) *int { return nil }
	if store, err := openExisting(ctx, c.folder()); err == nil && store != nil {
		defer func() { _ = store.Close() }()
		known = func(s serversfile.Server) *int {
			if list, _ := recordedTools(ctx, store, s); list.Tools != nil {
				n := len(list.Tools)
				return &n
			}
			return nil
		}
	}
	for _, name := range file.Names() {
		s, _ := file.Server(name)
		line := api.Server{Name: name, State: notRunning, Tools: known(s)}
		if s.Disabled {
			line.State, line.Why = api.Off, file.Reason(name)
		}
		all = append(all, line)
	}
	for _, r := range file.Rejected() {
		all = append(all, api.Server{Name: r.Name, State: api.NotServed, Why: r.Reason()})
	}
	return all, notes, nil
}

// openExisting opens the store of a data folder. It returns nil if there is none.
func openExisting(ctx context.Context, data string) (storage.Store, error) {
	if !exists(filepath.Join(data, local.StoreFile)) {
		return nil, nil //nolint:nilnil // there is no store
	}
	return openStore(ctx, "", data)
}

// recordedTools returns the tools that a server last listed to callers without a key, or else to the
// default tenant. list.Tools is nil if the store has no such list.
func recordedTools(ctx context.Context, store storage.Store, s serversfile.Server) (list api.Tools, err error) {
	for _, tenant := range []string{apikey.LocalTenant, "default"} {
		tools, taken, err := api.Options{Store: store}.Known(ctx, tenant, s)
		if err != nil || tools != nil {
			return api.Tools{Server: s.Name, Taken: taken, Tools: tools}, err
		}
	}
	return list, nil
}

func printNotes(out io.Writer, notes []string) error {
	if len(notes) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\n%s\n", strings.Join(notes, "\n"))
	return err
}

func printServers(out io.Writer, all []api.Server, base string, now time.Time) error {
	err := table(out, func(say func(string, ...any)) {
		say("NAME\tSTATE\tTOOLS\tSESSIONS\tCALLS·24H\tLAST\tADDRESS\n")
		for _, s := range all {
			state, tools, sessions, calls, last, address := cmp.Or(s.Start, s.State), "–", "–", "–", "–", cmp.Or(clipReason(s.Why, 100), strings.TrimSuffix(base, "/")+s.Path, "–")
			if s.Processes > 1 {
				state = fmt.Sprintf("%s ×%d", state, s.Processes)
			}
			if s.Tools != nil {
				tools = fmt.Sprint(*s.Tools)
			}
			if s.Path != "" || s.Sessions > 0 {
				sessions = fmt.Sprint(s.Sessions)
				if s.MoreSessions {
					sessions += "+"
				}
			}
			if s.Calls != nil && s.Path != "" {
				calls = fmt.Sprint(*s.Calls)
			}
			if s.LastMessage != nil {
				last = ago(now, *s.LastMessage)
			}
			say("%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, state, tools, sessions, calls, last, address)
		}
	})
	served := slices.DeleteFunc(slices.Clone(all), func(s api.Server) bool { return s.Path == "" })
	if err != nil || len(served) < 2 {
		return err
	}
	_, err = fmt.Fprintf(out, "\nall at one address: %s/mcp\n", strings.TrimSuffix(base, "/"))
	return err
}

// ago returns how long ago a time was, for example "3m ago".
func ago(now, t time.Time) string { return span(now.Sub(t)) + " ago" }

// span formats a duration in one unit, for example 90s, 3m, 36h or 5d.
func span(d time.Duration) string {
	switch d = max(0, d); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

type toolsCommand struct {
	Server string `arg:"" help:"Name of a server."`
	fileFlag
	target
	printing
}

// Run prints the tools of a server. If no answer of the server is stored, it asks the server, which
// may have to start.
func (c *toolsCommand) Run(t *terminal) error {
	err := use(context.Background(), c, callPatience, func(ctx context.Context, to *client) error {
		list, err := to.tools(ctx, c.Server)
		if endless, ok := errors.AsType[*wire.EndlessList](err); ok {
			_, _ = fmt.Fprintf(t.err, "%s: %v\n", c.Server, endless)
			err = nil
		}
		if err != nil {
			return err
		}
		return c.show(t, list, func() error { return printTools(t.out, list) })
	})
	if !isNotUp(err) || c.remote() {
		return err
	}
	list, problem := c.recorded(context.Background())
	if problem != nil || list.Tools == nil {
		return cmp.Or(problem, err)
	}
	return c.show(t, list, func() error { return printTools(t.out, list) })
}

// recorded returns the tools that the store keeps from the server's last answers, if no dormouse
// run is up.
func (c *toolsCommand) recorded(ctx context.Context) (list api.Tools, err error) {
	store, err := openExisting(ctx, c.folder())
	if store == nil || err != nil {
		return list, err
	}
	defer func() { _ = store.Close() }()
	file, _, err := serversfile.LoadHere(c.Servers, os.LookupEnv)
	if err != nil {
		return list, nil //nolint:nilerr // the caller reports that no dormouse run is up
	}
	s, ok := file.Server(c.Server)
	if !ok {
		return list, unknown("server", c.Server, file.Names())
	}
	return recordedTools(ctx, store, s)
}

// tools returns the tools of a server. If the error is a [*wire.EndlessList], the result has the
// tools that were read.
func (c *client) tools(ctx context.Context, server string) (api.Tools, error) {
	var list api.Tools
	err := c.call(ctx, "GET", "servers/"+server+"/tools", nil, &list)
	switch {
	case isCode(err, forbidden): // a key with the role user can still list the tools, as an MCP client
	case isCode(err, "not_found"):
		if _, err := c.server(ctx, server); err != nil {
			return list, err
		}
	default:
		return list, err
	}
	s, err := c.connect(ctx, server, "")
	if err != nil {
		return list, err
	}
	defer func() { _ = s.Close() }()
	list, err = toolsOver(ctx, s, server)
	if err != nil {
		err = fmt.Errorf("the tools of %s: %w", server, err)
	}
	return list, err
}

type tool struct {
	Name        string
	Description string
	InputSchema struct {
		Properties map[string]json.RawMessage
		Required   []string
	}
	Annotations struct {
		ReadOnlyHint    bool
		DestructiveHint *bool
		IdempotentHint  bool
	}
	schema json.RawMessage // the complete input schema
}

func toolsOf(list api.Tools) ([]tool, error) {
	all := make([]tool, len(list.Tools))
	for i, raw := range list.Tools {
		if err := json.Unmarshal(raw, &all[i]); err != nil {
			return nil, fmt.Errorf("the tools of %s are not as MCP says: %w", list.Server, err)
		}
		all[i].schema = wire.Lookup(raw, "inputSchema")
	}
	return all, nil
}

func printTools(out io.Writer, list api.Tools) error {
	all, err := toolsOf(list)
	if err != nil {
		return err
	}
	return table(out, func(say func(string, ...any)) {
		say("TOOL\tARGUMENTS\tHINTS\tDESCRIPTION\n")
		for _, t := range all {
			about, _, _ := strings.Cut(strings.TrimSpace(t.Description), "\n")
			say("%s\t%s\t%s\t%s\n", t.Name, cmp.Or(t.arguments(), "–"), cmp.Or(t.hints(), "–"), clip(about, 80))
		}
	})
}

// arguments returns the names of the arguments with their types. Optional ones are in brackets.
func (t tool) arguments() string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(t.InputSchema.Properties)) {
		text := name + "=" + typeOf(t.InputSchema.Properties[name])
		if !slices.Contains(t.InputSchema.Required, name) {
			text = "[" + text + "]"
		}
		names = append(names, text)
	}
	return strings.Join(names, " ")
}

func (t tool) hints() string {
	var all []string
	if t.Annotations.ReadOnlyHint {
		all = append(all, "read-only")
	}
	if d := t.Annotations.DestructiveHint; d != nil && *d {
		all = append(all, "destructive")
	}
	if t.Annotations.IdempotentHint {
		all = append(all, "idempotent")
	}
	return strings.Join(all, ", ")
}

// typeOf returns the type in a JSON schema, or "any" if it has none.
func typeOf(schema json.RawMessage) string {
	if name, ok := wire.String(wire.Lookup(schema, "type")); ok {
		return name
	}
	return "any"
}
