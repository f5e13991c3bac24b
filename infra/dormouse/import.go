package dormouse

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/config/clientfile"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

type importCommand struct {
	From    string   `arg:"" help:"claude-desktop, claude-code, cursor, vscode, codex, gemini, windsurf or zed; a file in the form of one of them; or - for standard input."`
	Only    []string `placeholder:"NAME" help:"Import only these servers."`
	DryRun  bool     `name:"dry-run" help:"Only print what would be done."`
	Replace bool     `help:"Replace servers that have the same name."`
	NoStart bool     `name:"no-start" help:"Only write the file."`
	dataFlag
	fileFlag
	printing
}

// Run imports servers from the configuration of another MCP client into the servers file.
func (c *importCommand) Run(t *terminal) error {
	sources, err := c.sources(t)
	if err != nil {
		return err
	}
	f, err := c.edit()
	if err != nil {
		return err
	}
	options := serversedit.Options{
		Only: c.Only, Replace: c.Replace, Folder: serversfile.FolderOf(f.path), Exists: exists,
		Program: func(command string, args []string) bool {
			_, err := runner.Find(serversfile.Server{Command: command, Args: args}, os.Getenv("PATH"), "")
			return err == nil
		},
	}
	items, err := importAll(sources, f, options)
	if err != nil {
		return err
	}
	if !c.DryRun {
		if err := f.save(); err != nil {
			return err
		}
	}
	if err := c.show(t, items, func() error { return c.print(t.out, f, items) }); err != nil || c.DryRun {
		return err
	}
	for _, i := range items {
		var lacks []serversfile.Variable
		for _, u := range i.Unset {
			lacks = append(lacks, serversfile.Variable{Name: u.Variable, About: u.What, Secret: u.Secret})
		}
		if _, err := t.askFor(f.path, i.Name, lacks); err != nil {
			return err
		}
	}
	if c.NoStart || c.JSON {
		return nil
	}
	return c.prepare(t, f, items)
}

// prepare starts each imported server once. A server that does not start stays in the file.
func (c *importCommand) prepare(t *terminal, f *edited, items []serversedit.Item) error {
	file, _, err := serversfile.LoadHere(f.path, os.LookupEnv)
	if err != nil {
		return err
	}
	var names []string
	taken := 0
	for _, i := range items {
		if s, ok := file.Server(i.Name); ok && !s.Disabled && (i.Does == serversedit.Add || i.Does == serversedit.Replace) {
			if taken++; len(i.Absent) == 0 {
				names = append(names, i.Name)
			}
		}
	}
	ctx, stop := interruptible()
	defer stop()
	all, err := t.prepareShown(ctx, preparation{servers: f.path, data: c.Data, names: names})
	if err != nil || len(all) == 0 {
		return err
	}
	_, err = fmt.Fprintf(t.out, "%d of %s ready\n", len(slices.DeleteFunc(all, func(o outcome) bool { return o.err != nil })), count(taken, "server"))
	return err
}

// importAll imports from all sources, in order. With --only it imports each name from the first
// source that has it. It looks for the remaining names in the last source, whose error lists those
// that are missing.
func importAll(sources []serversedit.Source, f *edited, o serversedit.Options) ([]serversedit.Item, error) {
	items := []serversedit.Item{}
	only := o.Only
	for n, src := range sources {
		if o.Only = only; only != nil && n < len(sources)-1 {
			o.Only = slices.DeleteFunc(slices.Clone(only), func(name string) bool {
				return !slices.ContainsFunc(src.Servers, func(s serversedit.Theirs) bool { return s.Name == name })
			})
			only = slices.DeleteFunc(slices.Clone(only), func(name string) bool { return slices.Contains(o.Only, name) })
		}
		if only != nil && len(o.Only) == 0 {
			continue
		}
		some, err := serversedit.Import(src, f.File, f.env.Env, o)
		if err != nil {
			return nil, err
		}
		items = append(items, some...)
	}
	return items, nil
}

func (c *importCommand) print(out io.Writer, f *edited, items []serversedit.Item) error {
	done := 0
	if err := table(out, func(say func(string, ...any)) {
		say("NAME\tWHAT\tTO .ENV\tNOTE\n")
		for _, i := range items {
			if i.Does != serversedit.LeaveOut {
				done++
			}
			name := i.Name
			if i.Was != "" {
				name = fmt.Sprintf("%s (was %s)", i.Name, i.Was)
			}
			say("%s\t%s\t%s\t%s\n", name, i.Does, cmp.Or(strings.Join(i.Moved, ", "), "–"), note(i))
		}
	}); err != nil {
		return err
	}
	were := fmt.Sprintf("%d of %d are in %s now", done, len(items), f.name())
	if c.DryRun {
		were = "nothing was written"
	}
	_, err := fmt.Fprintf(out, "\n%s\n", were)
	return err
}

// note returns what the user should know or do about an imported server.
func note(i serversedit.Item) string {
	var parts []string
	if i.Why != "" {
		parts = append(parts, i.Why)
	}
	if i.Direct {
		parts = append(parts, "its URL, without mcp-remote: if it wants a sign-in, remove it here and add it with --oauth")
	}
	if i.Off {
		parts = append(parts, "it is off: dormouse enable "+i.Name)
	}
	for _, u := range i.Unset {
		set := "put " + u.Variable + " into .env"
		if u.What != "" {
			set += " (" + u.What + ")"
		}
		parts = append(parts, set)
	}
	if len(i.Absent) > 0 {
		parts = append(parts, "not on this machine: "+strings.Join(i.Absent, ", "))
	}
	if len(i.Ignored) > 0 {
		parts = append(parts, "without "+strings.Join(i.Ignored, ", "))
	}
	return strings.Join(parts, "; ")
}

// sources reads the servers that c.From names. "-" stands for standard input, and the name of a
// client for the client's files. Anything else is the path of a file.
func (c *importCommand) sources(t *terminal) ([]serversedit.Source, error) {
	if c.From == "-" {
		text, err := io.ReadAll(io.LimitReader(t.in, serversfile.MaxFile+1))
		if err != nil {
			return nil, err
		}
		src, err := serversedit.Read(text, "standard input", false)
		return []serversedit.Source{src}, err
	}
	client, ok := clientfile.Find(c.From)
	if !ok || len(client.Imports) == 0 {
		if !exists(c.From) {
			var names []string
			for _, c := range clientfile.Clients() {
				if len(c.Imports) > 0 {
					names = append(names, c.Name)
				}
			}
			return nil, unknown("client or file", c.From, names)
		}
		src, err := sourceOf(c.From, false)
		return []serversedit.Source{src}, err
	}
	var all []serversedit.Source
	var looked []string
	for _, file := range client.Imports {
		path := t.machine().Path(file)
		looked = append(looked, path)
		if !exists(path) {
			continue
		}
		src, err := sourceOf(path, client.Name == "gemini")
		if err != nil {
			return nil, err
		}
		all = append(all, src)
	}
	if all == nil {
		return nil, fmt.Errorf("%s has no file here: there is no %s", client.Title, strings.Join(looked, ", no "))
	}
	return all, nil
}

// sourceOf reads a client's configuration file. If dollar is true, $NAME is a variable in the file.
func sourceOf(path string, dollar bool) (serversedit.Source, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return serversedit.Source{}, err
	}
	most, claude := int64(serversfile.MaxFile), filepath.Base(path) == ".claude.json"
	if claude {
		most = maxClientFile
	}
	text, err := serversfile.ReadFile(path, most)
	if err != nil {
		return serversedit.Source{}, err
	}
	if claude {
		if text, err = ofClaude(text); err != nil {
			return serversedit.Source{}, err
		}
	}
	return serversedit.Read(text, path, dollar)
}

// ofClaude extracts the servers from the text of ~/.claude.json: those of the user, and those of
// the working directory, which have precedence.
func ofClaude(text []byte) ([]byte, error) {
	var all struct {
		Servers  map[string]json.RawMessage `json:"mcpServers"`
		Projects map[string]struct {
			Servers map[string]json.RawMessage `json:"mcpServers"`
		} `json:"projects"`
	}
	if json.Unmarshal(text, &all) != nil {
		return nil, fmt.Errorf("~/.claude.json is not as Claude Code writes it")
	}
	servers := map[string]json.RawMessage{}
	folder, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for name, entry := range all.Projects[folder].Servers {
		servers[name] = entry
	}
	for name, entry := range all.Servers {
		if _, ok := servers[name]; !ok {
			servers[name] = entry
		}
	}
	return json.Marshal(map[string]any{"mcpServers": servers})
}

// machine returns where clients keep their files on this machine.
func (t *terminal) machine() clientfile.Machine {
	home, _ := os.UserHomeDir() // "" without a home; then no client's file is found
	m := clientfile.Machine{Home: home, Config: filepath.Join(home, ".config")}
	if folder := os.Getenv("XDG_CONFIG_HOME"); folder != "" {
		m.Config = folder
	}
	if runtime.GOOS == "darwin" {
		m.Config = filepath.Join(home, "Library", "Application Support")
	}
	m.Project, _ = os.Getwd()
	return m
}
