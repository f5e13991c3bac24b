package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/infra/internal/sources"
	"github.com/dormouse-mcp/dormouse/shared/box/proc"
)

// behind is a word that markCommand inserts after "--" in the arguments of dormouse add, because
// kong does not say where "--" was. No real argument can contain a NUL byte.
const behind = "\x00"

// markCommand marks the "--" in the arguments of dormouse add with [behind].
func markCommand(args []string) []string {
	if i := slices.Index(args, "--"); args[0] == "add" && i >= 0 {
		return slices.Insert(slices.Clone(args), i+1, behind)
	}
	return args
}

// resolve finds out which arguments are the name, the command, or one word that stands for a
// server.
func (c *addCommand) resolve() error {
	words := c.Command
	if c.Name != "" {
		words = append([]string{c.Name}, words...)
	}
	c.Name, c.Command = "", nil
	at := slices.Index(words, behind)
	switch {
	case at >= 0: // kong allows only one word before --
		c.Name, c.Command = strings.Join(words[:at], ""), words[at+1:]
	case len(words) == 1 && c.Entry != "":
		c.Name = words[0]
	case len(words) == 1 || len(words) > 0 && sources.IsProgram(words[0]):
		c.Command = words
	case len(words) > 0:
		c.Name, c.Command = words[0], words[1:]
	}
	c.named = c.Name != ""
	if err := c.readWord(at >= 0); err != nil {
		return err
	}
	switch {
	case len(c.Command) > 0 && c.Name == "":
		c.Name = sources.NameOf(c.Command)
	case c.remote == "" && c.Entry == "" && c.word == "" && len(c.Command) == 0:
		return fmt.Errorf("say what to add: dormouse add NAME -- COMMAND ARGS…, or one of npx://PACKAGE, a URL, a folder, a bundle")
	}
	return nil
}

// readWord handles a command that is one word, which may stand for a server. If behind is true, the
// word came after "--", and an unknown word is a program.
func (c *addCommand) readWord(behind bool) error {
	if len(c.Command) != 1 || c.Entry != "" {
		return nil
	}
	word := c.Command[0]
	source, err := sources.Of(word)
	switch {
	case err != nil && behind:
		return nil // the start of the server will report what is wrong
	case err != nil:
		return err
	case source.Image && c.Registry != officialRegistry && !strings.Contains(word, "://"):
		source = sources.Source{} // the word is the name of a server in that registry
	}
	switch {
	case source.Kind == sources.Remote:
		c.remote, c.Command = source.At, nil
	case source.Kind == sources.Command:
		c.Command = source.Command
	case source.Kind != sources.None:
		c.Command = nil
	case strings.Contains(word, "/") || c.Registry != officialRegistry:
		c.Command = nil
	case behind || c.Name != "":
		return nil
	default:
		return fmt.Errorf("say what %s is: dormouse add %[1]s -- COMMAND ARGS…, or npx://%[1]s, or uvx://%[1]s", word)
	}
	c.word, c.source, c.Name = word, source, cmp.Or(c.Name, source.Name)
	return nil
}

// unmake removes what this command has downloaded, because the server was not added.
func (c *addCommand) unmake() {
	for _, folder := range c.made {
		_ = os.RemoveAll(folder) // an error is ignored: what is left does no harm
		_ = os.Remove(filepath.Dir(folder))
	}
}

// Folders for what add downloads.
const (
	bundles      = "bundles"
	repositories = "repositories"
)

// fetched returns the folder for one kind of downloads. Each servers file has its own, in the
// user's XDG data folder. For a user without a home, it is in the folder data.
func fetched(kind, serversPath, data string) string {
	if folder := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(folder) {
		data = filepath.Join(folder, "dormouse")
	} else if home, err := os.UserHomeDir(); err == nil {
		data = filepath.Join(home, ".local", "share", "dormouse")
	}
	sum := sha256.Sum256([]byte(serversPath))
	return filepath.Join(data, kind, hex.EncodeToString(sum[:4]))
}

// sweep removes folders that dormouse add has downloaded, if this command has removed them from the
// servers file. The argument data is the data folder.
func (e *edited) sweep(data string) (removed []string) {
	for _, kind := range []string{bundles, repositories} {
		home := fetched(kind, e.path, data)
		all, _ := os.ReadDir(home)
		for _, f := range all {
			folder := filepath.Join(home, f.Name())
			quoted, err := json.Marshal(folder)
			if within := quoted[1 : len(quoted)-1]; err == nil && bytes.Contains(e.before, within) && !bytes.Contains(e.Text(), within) && os.RemoveAll(folder) == nil {
				removed = append(removed, folder)
			}
		}
		_ = os.Remove(home) // fails if the folder is not empty
	}
	return removed
}

// ofFolder returns the entry for a project in a folder. The project is not copied.
func (c *addCommand) ofFolder(_ context.Context, t *terminal, f *edited) (entry serversedit.Entry, version string, err error) {
	if bundle, ok, err := sources.BundleIn(c.source.At); ok {
		if err != nil {
			return entry, "", err
		}
		return c.ofUnpacked(t, f, bundle, c.source.At)
	}
	p, err := sources.Find(c.source.At)
	c.Name = cmp.Or(c.Name, p.Name)
	if err != nil {
		return entry, "", fmt.Errorf("%s: %w; say how to start it: dormouse add %s --cwd %[1]s -- COMMAND ARGS…", quoted(c.source.At), err, c.Name)
	}
	if p.Build != nil {
		var lines []string
		for _, line := range p.Build {
			lines = append(lines, strings.Join(line, " "))
		}
		return entry, "", fmt.Errorf("%s lacks what it needs to start: (cd %[1]s && %s), then the same command", quoted(c.source.At), strings.Join(lines, " && "))
	}
	if err := c.isNew(f); err != nil {
		return entry, "", err
	}
	return p.Entry, "", c.keep(f, &p.Entry)
}

// buildTime is the longest time for downloading something, and for each command that builds it.
const buildTime = 10 * time.Minute

// ofRepository clones a git repository at one commit and builds it, if needed. The result version
// is the commit.
func (c *addCommand) ofRepository(ctx context.Context, t *terminal, f *edited) (entry serversedit.Entry, version string, err error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return entry, "", fmt.Errorf("the program git fetches %s, and is not on this machine: install git", c.word)
	}
	if err := c.isNew(f); err != nil {
		return entry, "", err
	}
	w := t.waits("fetching", c.Name)
	defer w.end(false)
	home := fetched(repositories, f.path, c.Data)
	if err := os.MkdirAll(home, 0o755); err != nil { //nolint:gosec // a confined server, which has a user of its own, reads the folder
		return entry, "", err
	}
	part, err := os.MkdirTemp(home, ".fetching-*")
	if err != nil {
		return entry, "", err
	}
	defer func() { _ = os.RemoveAll(part) }()
	fetch, at := []string{"fetch", "--quiet", "--depth", "1", "--", "origin", cmp.Or(c.source.Ref, "HEAD")}, "FETCH_HEAD"
	if shortCommit.MatchString(c.source.Ref) { // a git server cannot resolve abbreviated commits, so all commits are fetched
		fetch, at = []string{"fetch", "--quiet", "--tags", "origin"}, c.source.Ref
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"remote", "add", "--", "origin", c.source.At}, fetch, {"checkout", "--quiet", at}} {
		if _, err := execIn(ctx, t, part, git, args...); err != nil {
			return entry, "", fmt.Errorf("%s: %w", c.word, err)
		}
	}
	commit, err := execIn(ctx, t, part, git, "rev-parse", "HEAD")
	if err != nil || len(commit) < 12 {
		return entry, "", fmt.Errorf("%s: %w", c.word, err)
	}
	dir := filepath.Join(home, c.source.Name+"-"+commit[:12])
	if !exists(dir) {
		if err := os.Chmod(part, 0o755); err != nil { //nolint:gosec // a confined server, which has a user of its own, reads the folder
			return entry, "", err
		}
		if err := os.Rename(part, dir); err != nil {
			return entry, "", err
		}
		c.made = append(c.made, dir)
	}
	at = filepath.Join(dir, filepath.FromSlash(c.source.Below))
	p, err := sources.Find(at)
	if err != nil {
		return entry, "", fmt.Errorf("%s: %w; clone it, and say how to start it: dormouse add %s --cwd FOLDER -- COMMAND ARGS…", c.word, err, c.Name)
	}
	p.Compiled(filepath.Join(at, "."+c.Name))
	for _, line := range p.Build {
		w.phase(c.Name, "building: "+strings.Join(line[:2], " "))
		if _, err := execIn(ctx, t, at, line[0], line[1:]...); err != nil {
			return entry, "", fmt.Errorf("%s cannot be built: %w", c.word, err)
		}
	}
	return p.Entry, commit[:12], c.keep(f, &p.Entry)
}

var shortCommit = regexp.MustCompile(`^[0-9a-f]{7,39}$`)

// execIn runs a program in a folder, and returns its output.
func execIn(ctx context.Context, t *terminal, dir, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	if t.ask == nil {
		cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(append([]string{filepath.Base(program)}, args...), " "), err, proc.LastWords(said.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// ofBundle unpacks a bundle (.mcpb), asks the user for its options, and returns the entry for its
// server.
func (c *addCommand) ofBundle(ctx context.Context, t *terminal, f *edited) (entry serversedit.Entry, version string, err error) {
	file := c.source.At
	if c.source.IsURL() {
		fetched, err := os.CreateTemp("", "dormouse-*.mcpb")
		if err != nil {
			return entry, "", err
		}
		defer func() { _ = os.Remove(fetched.Name()) }()
		hash, err := c.download(ctx, t, fetched, sources.MaxBundle)
		if err = errors.Join(err, fetched.Close()); err != nil {
			return entry, "", err
		}
		if c.hash != "" && !strings.EqualFold(hash, c.hash) {
			return entry, "", fmt.Errorf("%s has the hash %s, and its server.json says %s: it is not what was published", c.source.At, hash, c.hash)
		}
		file = fetched.Name()
	}
	bundle, err := sources.OpenBundle(file)
	if err != nil {
		return entry, "", err
	}
	dir := filepath.Join(fetched(bundles, f.path, c.Data), bundle.Name+"-"+bundle.Hash[:12])
	entry, version, err = c.ofUnpacked(t, f, bundle, dir)
	if err != nil || exists(dir) {
		return entry, version, err
	}
	c.made = append(c.made, dir)
	return entry, version, bundle.Unpack(dir)
}

// ofUnpacked returns the entry for the server of a bundle. dir is the folder in which its files
// are or will be.
func (c *addCommand) ofUnpacked(t *terminal, f *edited, bundle *sources.Bundle, dir string) (entry serversedit.Entry, version string, err error) {
	c.Name = cmp.Or(c.Name, bundle.Name)
	if err := c.isNew(f); err != nil {
		return entry, "", err
	}
	values, err := c.configure(t, f, bundle)
	if err != nil {
		return entry, "", err
	}
	if entry, err = bundle.Entry(dir, values); err != nil {
		return entry, "", err
	}
	return entry, bundle.Version, c.keep(f, &entry)
}

// configure returns the values of a bundle's options, in the form for the servers file. It saves
// sensitive values in .env, and also values of the user with "${", which would mean a variable in the
// servers file.
func (c *addCommand) configure(t *terminal, f *edited, bundle *sources.Bundle) (values map[string][]string, err error) {
	values = map[string][]string{}
	var missing []string
	for _, o := range bundle.Options {
		given, set := c.takes(o)
		if !set && t.ask != nil && (o.Required || o.Default == nil) {
			if given, err = t.ask(questionOf(c.Name, o), o.Sensitive); err != nil {
				return nil, err
			}
		}
		texts := slices.Clone([]string(o.Default))
		if given != "" {
			if texts, err = o.Check(given); err != nil {
				return nil, err
			}
		}
		if len(texts) == 0 && o.Required {
			missing = append(missing, o.Key)
		}
		for i, text := range texts {
			if o.Sensitive || given != "" && strings.Contains(text, "${") {
				variable, err := f.env.Keep(c.Name, strings.ToUpper(c.Name+"_"+o.Key), text)
				if err != nil {
					return nil, err
				}
				texts[i] = "${" + variable + "}"
			}
		}
		if len(texts) > 0 {
			values[o.Key] = texts
		}
	}
	if missing == nil {
		return values, nil
	}
	var give []string
	for _, key := range missing {
		give = append(give, "-e", key+"=…")
	}
	return nil, fmt.Errorf("%s was not added: it needs %s: %s", c.Name, strings.Join(missing, ", "), c.typed(give...))
}

// takes returns the value that -e sets for an option of a bundle. A -e for an option sets no
// environment variable.
func (c *addCommand) takes(o sources.Option) (given string, set bool) {
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		if name != o.Key {
			continue
		}
		if set && o.Multiple {
			value = given + string(filepath.ListSeparator) + value
		}
		given, set = value, true
		c.taken = append(c.taken, name)
	}
	return given, set
}

func questionOf(server string, o sources.Option) string {
	what := cmp.Or(o.Title, o.Key)
	if o.About != "" {
		what += " (" + strings.TrimSuffix(o.About, ".") + ")"
	}
	if o.Multiple {
		what += ", several with : between"
	}
	switch {
	case len(o.Default) > 0:
		what += " [" + strings.Join(o.Default, string(filepath.ListSeparator)) + "]"
	case !o.Required:
		what += ", or nothing"
	}
	return fmt.Sprintf("%s needs %s: ", server, wire.OneLine(what))
}

// download writes the content of the source's URL to a writer, and returns its SHA-256 in
// hexadecimal. It fails if the content is longer than limit, in bytes.
func (c *addCommand) download(ctx context.Context, t *terminal, to io.Writer, limit int64) (hash string, err error) {
	if !strings.HasPrefix(c.source.At, "https://") && c.hash == "" {
		return "", fmt.Errorf("%s is not https, so anybody on the way could change it", c.source.At)
	}
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	w := t.waits("fetching", c.word)
	defer w.end(false)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.source.At, nil)
	if err != nil {
		return "", fmt.Errorf("%s is no URL", c.source.At)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", fmt.Errorf("it cannot be fetched: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", c.source.At, res.Status)
	}
	sum := sha256.New()
	switch n, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(res.Body, limit+1)); {
	case err != nil:
		return "", fmt.Errorf("%s: %w", c.source.At, err)
	case n > limit:
		return "", fmt.Errorf("%s is larger than %d MiB", c.source.At, limit>>20)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
