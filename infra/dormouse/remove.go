package dormouse

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
)

// named has the names of servers that a command changes.
type named struct {
	Names []string `arg:"" name:"name" help:"Name of a server; may be repeated."`
	fileFlag
}

// change calls fn for each server that the user has named, and saves the file. If one of them is
// unknown, it changes nothing.
func (c named) change(fn func(f *edited, name string) error) (*edited, error) {
	f, err := c.edit()
	if err != nil {
		return nil, err
	}
	for _, name := range c.Names {
		if !f.Has(name) {
			return nil, unknown("server", name, f.Names())
		}
	}
	for _, name := range c.Names {
		if err := fn(f, name); err != nil {
			return nil, err
		}
	}
	return f, f.save()
}

// changeAtOnce is change, and a dormouse run that is up takes the file at once.
func (c named) changeAtOnce(t *terminal, fn func(f *edited, name string) error) (*edited, error) {
	f, err := c.change(fn)
	if err != nil {
		return nil, err
	}
	if err := takenAtOnce(target{}.folder(), nil); err != nil {
		_, _ = fmt.Fprintln(t.err, err)
	}
	return f, nil
}

type removeCommand struct{ named }

// Run removes servers from the file. Their variables stay in .env, because other programs may read
// them there.
func (c *removeCommand) Run(t *terminal) error {
	f, err := c.changeAtOnce(t, func(f *edited, name string) error { return f.Remove(name) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(t.out, "removed %s from %s; sessions stay until they expire\n", strings.Join(c.Names, ", "), f.name())
	for _, folder := range f.sweep(target{}.folder()) {
		_, err = fmt.Fprintf(t.out, "removed what add had fetched: %s\n", folder)
	}
	if left := f.unused(); len(left) > 0 {
		_, err = fmt.Fprintf(t.out, "still in .env: %s; delete what nothing else needs\n", strings.Join(left, ", "))
	}
	return err
}

// unused returns the variables in .env that the servers file used before this command, and does
// not use any more.
func (e *edited) unused() (names []string) {
	env, after := serversedit.NewEnv(e.env.Text(), nil), variablesIn([]string{string(e.Text())})
	for _, name := range variablesIn([]string{string(e.before)}) {
		if _, there := env.Lookup(name); there && !slices.Contains(after, name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

type enableCommand struct{ named }

func (c *enableCommand) Run(t *terminal) error {
	f, err := c.changeAtOnce(t, func(f *edited, name string) error { return f.Switch(name, true) })
	if err != nil {
		return err
	}
	for _, name := range c.Names {
		why, err := f.served(name)
		if err != nil {
			return err
		}
		if why != "" {
			return fmt.Errorf("%s is on, but it is not served: %s", name, why)
		}
	}
	_, err = fmt.Fprintf(t.out, "on: %s\n", strings.Join(c.Names, ", "))
	return err
}

type disableCommand struct{ named }

func (c *disableCommand) Run(t *terminal) error {
	if _, err := c.changeAtOnce(t, func(f *edited, name string) error { return f.Switch(name, false) }); err != nil {
		return err
	}
	_, err := fmt.Fprintf(t.out, "off: %s\n", strings.Join(c.Names, ", "))
	return err
}
