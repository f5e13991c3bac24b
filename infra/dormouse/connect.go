package dormouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/clientfile"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

type connectCommand struct {
	Client string   `arg:"" optional:"" help:"The name of the client. Without one the clients are listed."`
	Server []string `arg:"" optional:"" help:"Name of a server, by default all, but not with --url; may be repeated."`
	One    bool     `help:"Connect /mcp, which has the tools of all servers, as the server \"dormouse\"."`
	Write  bool     `help:"Write the servers into the client's file and keep the old one as FILE.bak, or as FILE.bak2 if there is a FILE.bak."`
	Remove bool     `help:"Take what --write has written out of the client's file."`
	File   string   `type:"path" placeholder:"FILE" help:"The client's file, if it is not in the usual place."`
	Key    string   `placeholder:"KEY" help:"API key that the client sends."`
	urlFlag
	dataFlag
	fileFlag
	printing
}

// Validate is called by kong.
func (c *connectCommand) Validate() error {
	switch {
	case c.Client == "":
		return nil
	case c.One && len(c.Server) > 0:
		return errors.New("--one connects all servers at once; leave out their names")
	case c.Remove && (c.Write || c.One || c.Key != ""):
		return errors.New("--remove goes with the names of servers, --url and --file only")
	case c.Remove:
		return nil
	case c.URL != "" && len(c.Server) == 0 && !c.One:
		return errors.New("name the servers of that endpoint: dormouse connect CLIENT SERVER --url URL, or --one for all of them")
	}
	return nil
}

// Run prints how to connect a client, or changes the client's configuration file.
func (c *connectCommand) Run(t *terminal) error {
	if c.Client == "" {
		return c.list(t)
	}
	client, err := choose("client", c.Client, clientfile.Clients(), func(of clientfile.Client) string { return of.Name })
	if err != nil {
		return err
	}
	if c.Remove {
		return c.remove(t, client)
	}
	servers, access, err := c.servers(t)
	if err != nil {
		return err
	}
	if c.Key == "" {
		switch access {
		case local.AccessKeys:
			_, _ = fmt.Fprintln(t.err, "callers need an API key: dormouse keys create WHO --server NAME makes one, and --key KEY puts it in")
		case local.AccessOAuth, local.AccessIDP:
			_, _ = fmt.Fprintln(t.err, "the client opens a page in the browser, where its user signs in; for a client without a browser, dormouse keys create WHO --server NAME makes an API key, and --key KEY puts it in")
		}
	}
	if c.Write {
		return c.write(t, client, servers)
	}
	return c.paste(t, client, servers)
}

// servers returns the servers to connect. The result access says who may call them, as a value of
// [local.Config].Access, or "" if unknown.
func (c *connectCommand) servers(t *terminal) (servers []clientfile.Server, access string, err error) {
	base, names := address(c.URL), c.Server
	if base == "" {
		if base, names, access, err = c.here(t); err != nil {
			return nil, "", err
		}
	}
	if c.One {
		return []clientfile.Server{{Name: "dormouse", URL: strings.TrimSuffix(base, "/") + "/mcp", Key: c.Key}}, access, nil
	}
	for _, name := range names {
		servers = append(servers, clientfile.Server{Name: name, URL: strings.TrimSuffix(base, "/") + "/" + name + "/mcp", Key: c.Key})
	}
	return servers, access, nil
}

// usualURL is the URL of dormouse run with default settings.
const usualURL = "http://127.0.0.1:8787"

// here returns the URL and the servers of the dormouse run that uses the data folder. If there is
// none, it returns usualURL and the servers of the servers file.
func (c *connectCommand) here(t *terminal) (base string, names []string, access string, err error) {
	data, err := c.folder(context.Background())
	if err != nil {
		return "", nil, "", err
	}
	var all []string
	err = use(context.Background(), target{Data: data}, patience, func(ctx context.Context, to *client) error {
		info, err := to.info(ctx)
		if err != nil {
			return err
		}
		base, access = info.URL, info.Access
		servers, err := to.servers(ctx)
		for _, s := range servers {
			if all = append(all, s.Name); s.Path != "" {
				names = append(names, s.Name)
			}
		}
		if err != nil || c.Key == "" || c.One || len(c.Server) > 0 {
			return err
		}
		names, err = to.openedBy(ctx, c.Key, names)
		return err
	})
	if isNotUp(err) {
		base = usualURL
		_, _ = fmt.Fprintf(t.err, "dormouse run is not up; %s is its usual address\n", usualURL)
		var file *serversfile.File
		if file, _, err = serversfile.LoadHere(c.Servers, os.LookupEnv); err == nil {
			all = namesIn(file)
			names = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return file.Reason(name) != "" })
		}
	}
	if err != nil {
		return "", nil, "", err
	}
	for _, name := range c.Server {
		if !slices.Contains(all, name) {
			return "", nil, "", unknown("server", name, all)
		}
	}
	switch {
	case len(c.Server) > 0:
		names = c.Server
	case len(names) == 0:
		return "", nil, "", errors.New("there is no server to connect: dormouse add NAME -- COMMAND ARGS… adds one")
	}
	return base, names, access, nil
}

// openedBy returns those of the names whose servers an API key may call. For an unknown key, which
// may be an access token, it returns all.
func (c *client) openedBy(ctx context.Context, key string, names []string) ([]string, error) {
	all, err := c.keys(ctx, "")
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(k api.Key) bool { return k.ID == apikey.KeyID(key) })
	if i < 0 {
		return names, nil
	}
	opened := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !apikey.May(all[i].Servers, name) })
	if len(opened) == 0 {
		return nil, fmt.Errorf("the key is for %s, which is not served: dormouse list shows why, or make another key", strings.Join(all[i].Servers, ", "))
	}
	return opened, nil
}

// ways has the texts and links that connect a client to one server, in JSON output.
type ways struct {
	Name string             `json:"name"`
	URL  string             `json:"url"`
	Ways []clientfile.Paste `json:"ways"`
}

// paste prints the texts and links with which a user connects a client to the servers.
func (c *connectCommand) paste(t *terminal, client clientfile.Client, servers []clientfile.Server) error {
	var all []ways
	for _, s := range servers {
		all = append(all, ways{s.Name, s.URL, client.Pastes(s)})
	}
	if c.JSON {
		return t.printJSON(all)
	}
	for n, w := range all {
		if len(all) > 1 {
			if n > 0 {
				_, _ = fmt.Fprintln(t.out)
			}
			_, _ = fmt.Fprintln(t.out, w.Name)
		}
		for i, p := range w.Ways {
			how := p.How
			if i > 0 {
				how = "or"
			}
			text := p.Text
			switch {
			case p.How == "file" && strings.Contains(p.Text, "\n"):
				text = t.machine().Short(p.File) + "\n          " + strings.ReplaceAll(p.Text, "\n", "\n          ")
			case p.How == "file":
				text = t.machine().Short(p.File) + "   " + p.Text
			}
			if _, err := fmt.Fprintf(t.out, "  %-7s %s\n", how, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// written is the JSON output of --write and --remove.
type written struct {
	File    string   `json:"file"`
	Backup  string   `json:"backup,omitempty"` // copy of the file before the change
	Servers []string `json:"servers"`
	Changed bool     `json:"changed"`
}

func (c *connectCommand) write(t *terminal, client clientfile.Client, servers []clientfile.Server) error {
	return c.change(t, client, "has them already", func(before []byte) (after []byte, names []string, err error) {
		for _, s := range servers {
			names = append(names, s.Name)
		}
		after, err = client.Merge(before, servers)
		return after, names, err
	})
}

// remove removes servers of this endpoint from the client's file. dormouse run need not be up, and
// the servers may no longer exist.
func (c *connectCommand) remove(t *terminal, of clientfile.Client) error {
	base := address(c.URL)
	if base == "" {
		err := use(context.Background(), target{Data: c.Data}, patience, func(ctx context.Context, to *client) error {
			info, err := to.info(ctx)
			base = info.URL
			return err
		})
		if isNotUp(err) {
			base, err = usualURL, nil
			_, _ = fmt.Fprintf(t.err, "dormouse run is not up; %s is its usual address, and --url names another\n", usualURL)
		}
		if err != nil {
			return err
		}
	}
	return c.change(t, of, "has nothing of "+base, func(before []byte) (after []byte, names []string, err error) {
		return of.Remove(before, base, c.Server)
	})
}

// change changes the client's file, saves a copy of the old one, and prints the difference. If
// nothing has changed, it prints the path of the file and unchanged.
func (c *connectCommand) change(t *terminal, client clientfile.Client, unchanged string, edit func(before []byte) (after []byte, names []string, err error)) error {
	path := c.File
	if path == "" {
		path = t.machine().Path(client.File)
	}
	before, err := readText(path, maxClientFile)
	if err != nil {
		return err
	}
	after, names, err := edit(before)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	done := written{File: path, Servers: names, Changed: !bytes.Equal(before, after)}
	if done.Changed {
		mode := fs.FileMode(0o644)
		if c.Key != "" {
			mode = 0o600
		}
		if info, err := os.Stat(path); err == nil {
			mode, done.Backup = info.Mode().Perm(), path+".bak"
			if exists(done.Backup) { // it may have the user's file before the first --write
				done.Backup += "2"
			}
			if err := writeText(done.Backup, before, mode); err != nil {
				return err
			}
		}
		if err := writeText(path, after, mode); err != nil {
			return err
		}
	}
	if c.JSON {
		return t.printJSON(done)
	}
	if !done.Changed {
		_, err := fmt.Fprintf(t.out, "%s %s\n", path, unchanged)
		return err
	}
	for line := range strings.Lines(lineDiff(string(before), string(after))) {
		_, _ = fmt.Fprintln(t.out, serversedit.Hide(strings.TrimSuffix(line, "\n")))
	}
	_, err = fmt.Fprintf(t.out, "%s is written", path)
	if done.Backup != "" {
		_, err = fmt.Fprintf(t.out, "; the earlier file is %s", filepath.Base(done.Backup))
	}
	_, _ = fmt.Fprintln(t.out)
	return err
}

func (c *connectCommand) list(t *terminal) error {
	type line struct {
		Name  string `json:"name"`
		Title string `json:"title"`
		File  string `json:"file"`
	}
	var all []line
	for _, client := range clientfile.Clients() {
		all = append(all, line{client.Name, client.Title, t.machine().Short(client.File)})
	}
	return c.show(t, all, func() error {
		return table(t.out, func(say func(string, ...any)) {
			say("CLIENT\t\tFILE\n")
			for _, l := range all {
				say("%s\t%s\t%s\n", l.Name, l.Title, l.File)
			}
		})
	})
}
