package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/infra/internal/sources"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

type addCommand struct {
	Name      string   `arg:"" optional:"" help:"Name of the server. Without one, add guesses it."`
	Command   []string `arg:"" optional:"" help:"The command that starts the server, after --. Or one word: npx://PACKAGE, uvx://PACKAGE, an image, a URL, a git repository, a folder, a script, a bundle (.mcpb), a server.json, or a name in the registry."`
	Env       []string `short:"e" sep:"none" placeholder:"K=V" help:"A variable for the server, saved in .env, or a value that its bundle asks for; may be repeated."`
	Cwd       string   `placeholder:"DIR" type:"path" help:"Working folder of the server."`
	HostPath  string   `name:"host-path" placeholder:"DIR" type:"path" help:"A folder that is copied for the server, with its dependencies installed."`
	Header    []string `sep:"none" placeholder:"K: V" help:"A header for each request to the URL; may be repeated. A secret is saved in .env."`
	OAuth     bool     `name:"oauth" help:"Each user signs in at the server of the URL."`
	ClientID  string   `name:"client-id" placeholder:"ID" help:"With --oauth: the id of this endpoint, registered by hand."`
	PublicURL string   `name:"public-url" default:"http://127.0.0.1:8787" placeholder:"URL" help:"With --oauth: where browsers reach this endpoint."`
	Private   bool     `help:"The URL may lead to this machine or to a private network."`
	Entry     string   `name:"json" placeholder:"JSON" help:"The server's entry, instead of a command: {\"name\": …, \"command\": …}."`
	NoPin     bool     `name:"no-pin" help:"Do not pin the version of a package."`
	NoStart   bool     `name:"no-start" help:"Only write the file."`
	Registry  string   `default:"https://registry.modelcontextprotocol.io" placeholder:"URL" help:"The MCP registry; another Dormouse is one, at https://HOST/registry."`
	Key       string   `name:"registry-key" placeholder:"KEY" help:"API key for the registry, and for a server at its address."`
	dataFlag
	fileFlag

	remote string         // URL of a remote server; "" if the server is not remote
	named  bool           // the user has given a name
	word   string         // the one word that stands for a server, as typed, such as npx://PACKAGE; "" if the user gave a command or --json
	source sources.Source // parsed from word
	hash   string         // SHA-256 that a server.json gives for its bundle; "" for none
	taken  []string       // names given with -e that are options of a bundle, not variables
	made   []string       // folders that this command has created
}

// privateSetting is the setting that --private writes.
const privateSetting = "x-dormouse.remote.private"

// officialRegistry is the default of --registry.
const officialRegistry = "https://registry.modelcontextprotocol.io"

// published reports whether the server has a server.json, in the registry or elsewhere.
func (c *addCommand) published() bool {
	return c.source.Kind == sources.Published || c.word != "" && c.source.Kind == sources.None
}

// Validate is called by kong.
func (c *addCommand) Validate() error {
	if err := c.resolve(); err != nil {
		return err
	}
	switch {
	case c.remote != "" && (c.Cwd != "" || c.HostPath != "" || len(c.Env) > 0):
		return errors.New("the server of a URL is not started here: leave out --cwd, --host-path and -e")
	case c.remote == "" && (len(c.Header) > 0 || c.Private && !c.published() || c.OAuth || c.ClientID != ""):
		return errors.New("--header, --private and --oauth are for a remote server: give its URL")
	case c.remote != "":
		for _, h := range c.Header {
			if name, _, ok := strings.Cut(h, ":"); !ok || strings.TrimSpace(name) == "" {
				return errors.New("--header is for a header and its value: --header 'NAME: VALUE'") // the value may be a secret, so it is not shown
			}
		}
	case c.Entry != "" && (len(c.Command) > 0 || c.word != ""):
		return errors.New("give a command or --json, not both")
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return errors.New("-e is for a variable and its value: -e NAME=VALUE") // the value may be a secret, so it is not shown
		}
	}
	return nil
}

// Run adds the server to the servers file, and starts it once so that no client waits for the
// installation.
func (c *addCommand) Run(t *terminal) error {
	begun := t.now()
	ctx, stop := interruptible()
	defer stop()
	f, err := c.edit()
	if err != nil {
		return err
	}
	version, err := c.put(ctx, t, f)
	if err == nil {
		var why string
		if why, err = f.checked(c.Name); why != "" {
			err = fmt.Errorf("nothing was added: %s", why)
		}
	}
	if err == nil {
		err = f.save()
	}
	if err != nil {
		c.unmake()
		return err
	}
	ready, err := c.begin(ctx, t, f)
	switch {
	case errors.Is(err, errNotTaken):
		f.env.sayKept(t.out, c.Name)
		_, _ = fmt.Fprintf(t.out, "added %s to %s\n", c.Name, f.name())
		return err
	case c.NoStart && errors.As(err, new(notServed)):
		f.env.sayKept(t.out, c.Name)
		return fmt.Errorf("added %s to %s, but it is not served: %w", c.Name, f.name(), err)
	case err != nil:
		f.undo()
		c.unmake()
		_ = takenAtOnce(c.Data, []string{c.Name}) // on an error, dormouse run finds the change by itself soon
		return c.mended(err)
	case c.OAuth || c.NoStart:
		return nil
	}
	f.env.sayKept(t.out, c.Name)
	what := strings.TrimSpace(c.Name + " " + cmp.Or(version, ready.version))
	if ready.warning != "" {
		_, _ = fmt.Fprintf(t.err, "%s: %s\n", c.Name, ready.warning)
	}
	_, err = fmt.Fprintf(t.out, "added %s: %s in %.1f s\n", what, count(ready.tools, "tool"), t.now().Sub(begun).Seconds())
	return err
}

// begin starts the new server once, unless --oauth or --no-start is set. The servers file must be
// saved. If the start fails because a variable is missing, begin asks the user for it and tries again.
func (c *addCommand) begin(ctx context.Context, t *terminal, f *edited) (ready readiness, err error) {
	if f.typed, err = t.fill(asked{servers: f.path, only: []string{c.Name}, all: true}); err != nil {
		return ready, err
	}
	file, _, err := serversfile.LoadHere(f.path, os.LookupEnv)
	if err != nil {
		return ready, err
	}
	if why := notHosted(file, c.Name); why != "" {
		return ready, notServed{why, lackOf(file, c.Name)}
	}
	if c.OAuth {
		f.env.sayKept(t.out, c.Name)
		_, err := fmt.Fprintf(t.out, "added %s to %s\nusers connect it at %s/connect?server=%s, or where their first call sends them\n", c.Name, f.name(), strings.TrimSuffix(c.PublicURL, "/"), url.QueryEscape(c.Name))
		return ready, err
	}
	if c.NoStart {
		if err := takenAtOnce(c.Data, []string{c.Name}); err != nil {
			_, _ = fmt.Fprintln(t.err, err)
		}
		f.env.sayKept(t.out, c.Name)
		_, err := fmt.Fprintf(t.out, "added %s to %s\n", c.Name, f.name())
		return ready, err
	}
	for range mostAsked {
		w := t.waits("starting", c.Name)
		var all []outcome
		all, err = t.prepare(ctx, preparation{servers: f.path, data: c.Data, names: []string{c.Name}, shows: w})
		w.end(false)
		if err == nil {
			ready, err = all[0].readiness, all[0].err
		}
		if err == nil || t.ask == nil || !c.fills(t, f, err) {
			break
		}
	}
	return ready, err
}

// notServed is the error about a server that lacks variables, or has another mistake in the file.
type notServed struct {
	why   string
	lacks []string // required variables that are not set
}

func (n notServed) Error() string { return n.why }

// lackOf returns the variables that must be set before a server can be served.
func lackOf(file *serversfile.File, name string) (names []string) {
	for _, r := range file.Rejected() {
		if r.Name == name {
			for _, v := range r.Lacks() {
				names = append(names, v.Name)
			}
		}
	}
	return names
}

// mostAsked is how many times at most add starts a server. Before each further start, the user
// gives the variable that the last one lacked.
const mostAsked = 4

// fills asks the user for the environment variable that the error of a failed start names, and
// saves the value. It reports whether it has saved one.
func (c *addCommand) fills(t *terminal, f *edited, err error) bool {
	name := lacks(err.Error())
	if name == "" || c.remote != "" || c.has(name) {
		return false
	}
	_, _ = fmt.Fprintln(t.err, err)
	value, err := t.ask(fmt.Sprintf("%s needs %s: ", c.Name, name), true)
	if err != nil || value == "" {
		return false
	}
	env, err := openVariables(f.path)
	if err != nil {
		return false
	}
	if err = f.setValue(env, c.Name, name, value); err == nil {
		err = env.save()
	}
	if err == nil {
		err = f.saveServers()
	}
	if err != nil {
		_, _ = fmt.Fprintln(t.err, err)
		return false
	}
	env.sayKept(t.out, c.Name)
	f.typed = append(f.typed, env.Added()...)
	c.Env = append(c.Env, name+"="+value)
	return true
}

// has reports whether a flag -e sets a variable.
func (c *addCommand) has(name string) bool {
	return slices.ContainsFunc(c.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

// lacks returns the environment variable that an error text calls missing, or "".
func lacks(words string) string {
	if !missingWords.MatchString(words) {
		return ""
	}
	return variableWord.FindString(words)
}

var (
	missingWords = regexp.MustCompile(`(?i)(environment|variable|api.?key|token|secret|password).*(required|missing|must be|not set|not provided|provide|needed)|(required|missing|must be|not set|not provided|provide|needed|set the).*(environment|variable|api.?key|token|secret|password)`)
	variableWord = regexp.MustCompile(`\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b`)
)

// mended returns the error for the user after an add that failed and was undone.
func (c *addCommand) mended(err error) error {
	words, name := err.Error(), lacks(err.Error())
	var not notServed
	switch {
	case errors.As(err, &not) && not.lacks != nil:
		var give []string
		for _, name := range not.lacks {
			give = append(give, "-e", name+"=…")
		}
		return fmt.Errorf("%s was not added: it needs %s: %s", c.Name, strings.Join(not.lacks, ", "), c.typed(give...))
	case errors.As(err, &not):
		return fmt.Errorf("nothing was added: %w", err)
	case c.remote != "" && strings.Contains(words, privateSetting):
		return fmt.Errorf("%s was not added: it does not answer: %w; to permit it: %s", c.Name, err, c.typed("--private"))
	case c.remote != "":
		return fmt.Errorf("%s was not added: it does not answer: %w", c.Name, err)
	case name != "" && !c.has(name):
		return fmt.Errorf("%s was not added: %w; give the value: %s", c.Name, err, c.typed("-e", name+"=…"))
	}
	if how := c.project(words); how != "" {
		return fmt.Errorf("%s was not added: it did not start: %w; %s", c.Name, err, how)
	}
	return fmt.Errorf("%s was not added: it did not start: %w", c.Name, err)
}

// project returns advice for the user if a program did not find its dependencies, and "" for other
// errors.
func (c *addCommand) project(words string) string {
	if len(c.Command) == 0 {
		return ""
	}
	folder, with := cmp.Or(c.Cwd, "."), *c
	with.word, with.Command = "", slices.Clone(c.Command)
	namesFile := false
	for i, arg := range c.Command[1:] {
		if info, err := os.Stat(filepath.Join(folder, arg)); err == nil && !info.IsDir() {
			folder, with.Command[1+i] = filepath.Dir(filepath.Join(folder, arg)), filepath.Base(arg)
			namesFile = true
			break
		}
	}
	here := func(name string) bool { return exists(filepath.Join(folder, name)) }
	switch _, err := exec.LookPath("uv"); {
	case strings.Contains(words, "ERR_MODULE_NOT_FOUND") || strings.Contains(words, "Cannot find module") || strings.Contains(words, "Cannot find package"):
		if here("package.json") && !here("package-lock.json") {
			return fmt.Sprintf("its folder has no package-lock.json: (cd %s && npm install), then the same command", quoted(folder))
		}
		return ""
	case !strings.Contains(words, "ModuleNotFoundError") || c.HostPath != "":
		return ""
	case !here("pyproject.toml") && !here("requirements.txt"):
		if !namesFile { // nothing shows that the program is a script of the user
			return ""
		}
		with.HostPath, with.Cwd = folder, ""
		return "write the packages that it needs into " + quoted(filepath.Join(folder, "requirements.txt")) + ", and have them installed: " + with.typed()
	case err != nil:
		with.HostPath, with.Cwd = folder, ""
		return "have a copy of its folder with its dependencies: " + with.typed()
	case here("pyproject.toml"):
		with.Command = append([]string{"uv", "run", "--project", folder}, c.Command...)
	default:
		with.Command = append([]string{"uv", "run", "--no-project", "--with-requirements", filepath.Join(folder, "requirements.txt")}, c.Command...)
	}
	return "let uv install what it needs: " + with.typed()
}

// typed returns this command line for typing it again, with more flags. It replaces values that may
// be secrets, such as those of -e, by "…".
func (c *addCommand) typed(more ...string) string {
	words := []string{"dormouse", "add"}
	if c.named || c.word == "" {
		words = append(words, c.Name)
	}
	if c.word != "" {
		words = append(words, quoted(c.word))
	}
	words = append(words, more...)
	for _, kv := range c.Env {
		name, _, _ := strings.Cut(kv, "=")
		words = append(words, "-e", name+"=…")
	}
	if c.Cwd != "" {
		words = append(words, "--cwd", quoted(c.Cwd))
	}
	if c.HostPath != "" {
		words = append(words, "--host-path", quoted(c.HostPath))
	}
	for _, header := range c.Header {
		name, _, _ := strings.Cut(header, ":")
		words = append(words, "--header", quoted(name+": …"))
	}
	if c.OAuth {
		words = append(words, "--oauth")
	}
	if c.ClientID != "" {
		words = append(words, "--client-id", quoted(c.ClientID))
	}
	if c.Registry != officialRegistry {
		words = append(words, "--registry", quoted(c.Registry))
	}
	if c.Key != "" {
		words = append(words, "--registry-key", "…")
	}
	switch {
	case c.word != "":
		return strings.Join(words, " ")
	case c.remote != "":
		return strings.Join(append(words, quoted(c.remote)), " ")
	case c.Entry != "":
		return strings.Join(append(words, "--json", "…"), " ")
	}
	words = append(words, "--")
	for _, word := range c.Command {
		words = append(words, quoted(serversedit.Hide(word)))
	}
	return strings.Join(words, " ")
}

// quoted quotes a word for a shell, if necessary.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-…", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// put adds the server to the text of the servers file; the caller saves it. The result version is
// that of the server's package or bundle, or "".
func (c *addCommand) put(ctx context.Context, t *terminal, f *edited) (version string, err error) {
	if c.Name != "" {
		if err := c.isNew(f); err != nil {
			return "", err
		}
	}
	find := c.ofCommand
	switch c.source.Kind {
	case sources.Folder:
		find = c.ofFolder
	case sources.Repository:
		find = c.ofRepository
	case sources.File:
		find = c.ofBundle
	default:
		if c.published() {
			find = c.ofRegistry
		}
	}
	entry, version, err := find(ctx, t, f)
	if err != nil {
		return "", err
	}
	if c.Cwd != "" {
		entry.Cwd = c.Cwd
	}
	if c.HostPath != "" {
		entry.SetBox("host_path", c.HostPath)
	}
	if err := entry.KeepSecrets(c.Name, f.env.Env); err != nil {
		return "", err
	}
	if c.OAuth {
		if err := c.connects(ctx, f, &entry); err != nil {
			return "", err
		}
	}
	return version, f.Set(c.Name, entry)
}

// keep saves the variables of -e in .env, and refers to them in the server's env.
func (c *addCommand) keep(f *edited, e *serversedit.Entry) error {
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(c.taken, name) {
			continue
		}
		if err := e.Keep(c.Name, f.env.Env, name, value); err != nil {
			return err
		}
		if c.source.Image {
			e.Args = slices.Insert(e.Args, len(e.Args)-1, "-e", name)
		}
	}
	return nil
}

// ofCommand returns the entry for a command, a URL or --json. The result version is the one to
// which the package was pinned, or "".
func (c *addCommand) ofCommand(ctx context.Context, t *terminal, f *edited) (entry serversedit.Entry, version string, err error) {
	if entry, err = c.entry(); err != nil {
		return entry, "", err
	}
	if err := c.isNew(f); err != nil {
		return entry, "", err
	}
	through := entry
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		through.Env = append(slices.Clone(through.Env), serversedit.Variable{Name: name, Value: value})
	}
	if through.Unwrap() {
		c.remote = through.URL // the command only connects to a remote server, so errors from here on are about that server
		return through, "", nil
	}
	entry.Unwrap()
	if cwd, err := os.Getwd(); err == nil {
		entry.Rebase(cwd, serversfile.FolderOf(f.path), exists)
	}
	if !c.NoPin {
		version = t.pin(ctx, &entry, filepath.Dir(f.path))
	}
	return entry, version, c.keep(f, &entry)
}

// isNew returns an error if the file already has a server with this name.
func (c *addCommand) isNew(f *edited) error {
	if f.Has(c.Name) {
		return fmt.Errorf("%s has a server %s already: choose another name, or dormouse remove %s first", f.name(), c.Name, c.Name)
	}
	return nil
}

// entry returns the entry for the command line, without the variables of -e.
func (c *addCommand) entry() (serversedit.Entry, error) {
	e := serversedit.Entry{}
	if c.Entry != "" {
		var name string
		var err error
		if e, name, err = serversedit.ParseEntry([]byte(c.Entry)); err != nil {
			return e, fmt.Errorf("--json: %w", err)
		}
		if c.Name == "" {
			c.Name = name
		}
		switch {
		case c.Name == "":
			return e, errors.New(`--json: the entry has no name: write {"name": …}, or dormouse add NAME --json …`)
		case e.Command == "" && e.URL == "":
			return e, errors.New("--json: the entry has neither a command nor a url")
		}
	} else if c.remote != "" {
		e.URL = c.remote
		for _, h := range c.Header {
			name, value, _ := strings.Cut(h, ":")
			e.Headers = append(e.Headers, serversedit.Variable{Name: strings.TrimSpace(name), Value: strings.TrimSpace(value)})
		}
		if c.Private {
			e.SetOurs("remote", map[string]bool{"private": true})
		}
	} else {
		e.Command, e.Args = c.Command[0], c.Command[1:]
	}
	return e, nil
}

// notHosted returns why a server of a file cannot be served, or "" if it can.
func notHosted(c *serversfile.File, name string) string {
	for _, r := range c.Rejected() {
		if r.Name == name {
			return r.Reason()
		}
	}
	return ""
}

// checked returns why a server of the edited text could not be served even if all variables were
// set, or "" if it could.
func (e *edited) checked(name string) (why string, err error) {
	c, _, err := serversfile.ParseHere(e.Text(), e.path, func(string) (string, bool) { return "http://set", true }) // a valid value for every variable, also where the file needs a URL
	if err != nil {
		return "", err
	}
	return notHosted(c, name), nil
}

// served returns why a server of the saved file cannot be served, or "" if it can.
func (e *edited) served(name string) (why string, err error) {
	c, _, err := serversfile.LoadHere(e.path, os.LookupEnv)
	if err != nil {
		return "", err
	}
	return notHosted(c, name), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// askTime is the longest time that a package registry may take to answer.
const askTime = 30 * time.Second

// pin makes an entry start the newest version of its npm or PyPI package, and returns that version.
// If the entry names a version, it does nothing. It asks the registry that npm or pip is configured
// for.
func (t *terminal) pin(ctx context.Context, e *serversedit.Entry, folder string) (version string) {
	p, ok := e.Package()
	if !ok || p.Version != "" {
		return ""
	}
	w := t.waits("resolving", p.Name)
	version, err := newest(ctx, p, folder)
	w.end(false)
	if err != nil {
		_, _ = fmt.Fprintf(t.err, "the version of %s stays open: %v\n", p.Name, err)
		return ""
	}
	e.Pin(p, version)
	return version
}

// newest returns the newest version of a package, from the registry that npm or pip is configured
// for in this folder.
func newest(ctx context.Context, p serversedit.Package, folder string) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	argv := []string{"npm", "view", p.Name, "version"}
	form := regexp.MustCompile(`(?m)^([0-9][0-9A-Za-z.+-]*)$`)
	if p.Kind == "pypi" {
		argv = []string{"python3", "-m", "pip", "index", "versions", p.Name}
		form = regexp.MustCompile(`^\S+ \(([0-9][0-9A-Za-z.+!-]*)\)`)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = folder
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, proc.LastWords(said.String()))
	}
	if m := form.FindSubmatch(bytes.TrimSpace(out)); m != nil {
		return string(m[1]), nil
	}
	return "", fmt.Errorf("%s says no version", strings.Join(argv, " "))
}
