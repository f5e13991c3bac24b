package dormouse

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/config/held"
)

type upgradeCommand struct {
	Server string `arg:"" optional:"" help:"Name of a server. Without one, the newer versions of all packages with a version are listed."`
	To     string `placeholder:"VERSION" help:"This version instead of the newest, also an older one."`
	dataFlag
	fileFlag
	printing
}

// Validate is called by kong.
func (c *upgradeCommand) Validate() error {
	if c.To != "" && c.Server == "" {
		return errors.New("--to is for one server: dormouse upgrade NAME --to VERSION")
	}
	return nil
}

// newer has the version of a package in a server's entry, and the newest version.
type newer struct {
	Name    string `json:"name"`
	Package string `json:"package"`
	Version string `json:"version"`
	Newest  string `json:"newest,omitempty"`
	Why     string `json:"why,omitempty"` // why the newest version is unknown; "" if it is known

	of serversedit.Package
}

// Run lists newer versions of packages, or makes a server start another version.
func (c *upgradeCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	f, err := c.edit()
	if err != nil {
		return err
	}
	if c.Server == "" {
		return c.list(t, resolved(ctx, t, f, f.Names()))
	}
	if !f.Has(c.Server) {
		return unknown("server", c.Server, f.Names())
	}
	if p, ok := f.Package(c.Server); !ok || p.Version == "" {
		return fmt.Errorf("%s names no version of a package of npm or PyPI in %s, so there is none to change", c.Server, f.name())
	} else if c.To != "" {
		return c.apply(ctx, t, f, newer{Name: c.Server, Package: p.Name, Version: p.Version, Newest: strings.TrimPrefix(c.To, "v"), of: p})
	}
	s := resolved(ctx, t, f, []string{c.Server})[0]
	switch {
	case s.Why != "":
		return errors.New(s.Why)
	case !isNewer(s.Newest, s.Version):
		return c.show(t, s, func() error {
			_, err := fmt.Fprintf(t.out, "%s has the newest version, %s %s\n", c.Server, s.Package, s.Version)
			return err
		})
	}
	return c.apply(ctx, t, f, s)
}

// mostAskedAtOnce is how many packages are looked up in registries at the same time.
const mostAskedAtOnce = 8

// resolved returns those of the servers whose entries name a version of a package. Each has the
// newest version of the package, or the reason why that is unknown.
func resolved(ctx context.Context, t *terminal, f *edited, names []string) (all []newer) {
	for _, name := range names {
		if p, ok := f.Package(name); ok && p.Version != "" {
			all = append(all, newer{Name: name, Package: p.Name, Version: p.Version, of: p})
		}
	}
	if len(all) == 0 {
		return nil
	}
	what := all[0].Package
	if len(all) > 1 {
		what = count(len(all), "package")
	}
	w := t.waits("resolving", what)
	defer w.end(false)
	var asking errgroup.Group
	asking.SetLimit(mostAskedAtOnce)
	for i := range all {
		asking.Go(func() (err error) {
			if all[i].Newest, err = newest(ctx, all[i].of, filepath.Dir(f.path)); err != nil {
				all[i].Why = err.Error()
			}
			return nil
		})
	}
	_ = asking.Wait() // each error is in Why
	return all
}

// list prints the servers whose packages have newer versions.
func (c *upgradeCommand) list(t *terminal, all []newer) error {
	old := slices.DeleteFunc(slices.Clone(all), func(s newer) bool { return s.Why == "" && !isNewer(s.Newest, s.Version) })
	err := c.show(t, append([]newer{}, old...), func() error { return printNewer(t.out, old, len(all)) })
	return cmp.Or(err, failedIf(slices.ContainsFunc(old, func(s newer) bool { return s.Why != "" })))
}

func printNewer(out io.Writer, old []newer, of int) error {
	if len(old) == 0 {
		_, err := fmt.Fprintf(out, "%s with a version, none has a newer one\n", count(of, "package"))
		return err
	}
	err := table(out, func(say func(string, ...any)) {
		say("NAME\tPACKAGE\tVERSION\tNEWEST\n")
		for _, s := range old {
			say("%s\t%s\t%s\t%s\n", s.Name, s.Package, s.Version, cmp.Or(s.Newest, "not known: "+s.Why))
		}
	})
	if err == nil && slices.ContainsFunc(old, func(s newer) bool { return s.Why == "" }) {
		_, err = fmt.Fprintln(out, "\nto try a newest version and take it: dormouse upgrade NAME")
	}
	return err
}

// changedTools is the result of upgrading a server: how its tools differ.
type changedTools struct {
	newer
	Tools []held.Change `json:"tools"`
}

// apply tries another version of a server, while the current one stays in use. It shows how the
// tools differ. Unless a user at the terminal refuses, it sets the version in the servers file, and
// accepts the tools.
func (c *upgradeCommand) apply(ctx context.Context, t *terminal, f *edited, s newer) error {
	trial, before := *f.File, c.Server+"-before"
	for trial.Has(before) {
		before += "-"
	}
	if err := trial.Copy(c.Server, before); err != nil {
		return err
	}
	if err := trial.SetVersion(c.Server, s.of, s.Newest); err != nil {
		return err
	}
	w := t.waits("starting "+s.Newest, c.Server)
	was, is, err := t.try(ctx, trying{file: f.path, text: trial.Text(), names: [2]string{before, c.Server}, shows: w})
	w.end(false)
	if err != nil {
		return fmt.Errorf("%s stays at %s %s: %w", c.Server, s.Package, s.Version, err)
	}
	if is.err != nil {
		return fmt.Errorf("%s stays at %s %s, because %s does not start: %w", c.Server, s.Package, s.Version, s.Newest, is.err)
	}
	changes := []held.Change{}
	if was.err == nil {
		changes = held.Difference(was.tools, is.tools)
	}
	if !c.JSON {
		for _, change := range changes {
			_, _ = fmt.Fprintf(t.out, "  %s\n", strings.Join(change.Lines(), "\n  "))
		}
	}
	if t.ask != nil && len(changes) > 0 && !c.JSON {
		if answer, err := t.ask(fmt.Sprintf("take %s of %s? [y/n] ", s.Newest, s.Package), false); err != nil || !strings.HasPrefix(strings.ToLower(answer), "y") {
			return fmt.Errorf("%s stays at %s %s", c.Server, s.Package, s.Version)
		}
	}
	if err := f.SetVersion(c.Server, s.of, s.Newest); err != nil {
		return err
	}
	if err := f.saveServers(); err != nil {
		return err
	}
	w = t.waits("starting", c.Server)
	all, err := t.prepare(ctx, preparation{servers: f.path, data: c.Data, names: []string{c.Server}, shows: w, accepts: true})
	w.end(false)
	if err == nil {
		err = all[0].err
	}
	if errors.Is(err, errNotTaken) {
		err = nil // the dormouse run that is up does not serve this file, so it need not start the server
	}
	if err != nil {
		f.undo()
		_ = takenAtOnce(c.Data, []string{c.Server})
		return fmt.Errorf("%s stays at %s %s: %w", c.Server, s.Package, s.Version, err)
	}
	return c.show(t, changedTools{s, changes}, func() error {
		what := "its tools are the same"
		switch {
		case was.err != nil:
			what = count(len(is.tools), "tool") + "; those of " + s.Version + " are not known, because it does not start"
		case len(changes) > 0:
			what = count(len(changes), "tool") + " changed"
		}
		_, err := fmt.Fprintf(t.out, "%s: %s %s → %s, %s\nback again: dormouse upgrade %s --to %s\n", c.Server, s.Package, s.Version, s.Newest, what, c.Server, s.Version)
		return err
	})
}

// trying names two servers of a file for a trial: one with the current version, and one with the
// new version.
type trying struct {
	file  string // path of the real servers file
	text  []byte // text of the servers file for the trial
	names [2]string
	shows *waits
}

// tried is the outcome of one server in a trial, with its tools.
type tried struct {
	outcome
	tools []json.RawMessage
}

// try serves a servers file for a trial, with a temporary data folder, and starts two of its
// servers.
func (p Program) try(ctx context.Context, what trying) (one, two tried, err error) {
	data, err := os.MkdirTemp("", "dormouse-upgrade")
	if err != nil {
		return one, two, err
	}
	defer func() { _ = os.RemoveAll(data) }()
	// The file for the trial must be in the same folder, because its paths and its .env are
	// relative to that.
	file, err := os.CreateTemp(filepath.Dir(what.file), ".upgrade-*.json")
	if err != nil {
		return one, two, err
	}
	defer func() {
		_ = os.Remove(file.Name())
		_ = os.Remove(held.LockOf(file.Name(), true).Path())
	}()
	_, err = file.Write(what.text)
	if err = errors.Join(err, file.Close()); err != nil {
		return one, two, err
	}
	err = hostAlone(ctx, local.Config{Servers: file.Name(), Data: data, Native: p.Native}, func(ctx context.Context, _ string) error {
		return use(ctx, target{Data: data}, 0, func(ctx context.Context, to *client) error {
			all, err := to.prepareAll(ctx, preparation{names: what.names[:], shows: what.shows})
			if err != nil {
				return err
			}
			for i, of := range []*tried{&one, &two} {
				of.outcome = all[i]
				if of.err != nil {
					continue
				}
				list, err := to.tools(ctx, what.names[i])
				if err != nil {
					return err
				}
				of.tools = list.Tools
			}
			return nil
		})
	})
	return one, two, err
}

// isNewer reports whether version a is newer than version b. A version with a word, such as
// 2.0.0-rc.1, is older than one with the same numbers.
func isNewer(a, b string) bool {
	numbers := func(version string) (all []int, word bool) {
		version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "+")
		for part := range strings.SplitSeq(strings.Replace(version, "-", ".-", 1), ".") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 {
				return all, true
			}
			all = append(all, n)
		}
		return all, false
	}
	x, early := numbers(a)
	y, late := numbers(b)
	for len(x) < len(y) {
		x = append(x, 0)
	}
	for len(y) < len(x) {
		y = append(y, 0)
	}
	if n := slices.Compare(x, y); n != 0 {
		return n > 0
	}
	return !early && late
}
