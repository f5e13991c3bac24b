package serversfile

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Changes says how a servers file differs from its earlier content.
type Changes struct {
	Added    []string // servers that are served now and were not before
	Changed  []Change // servers in both contents that differ, and those with a new mistake
	Removed  []string // servers that were served before and are not in the file any more
	Sections []string // sections of the file's x-dormouse that differ: access, connect, groups, limits
}

// Change names a server whose configuration has changed.
type Change struct {
	Name string
	// What has changed, in words of the file: native, command, args, env, cwd, box, timeouts, record,
	// tasks. If the server is not served, What is only "not served: REASON".
	What []string
}

// None reports whether nothing has changed for the users of any server.
func (c Changes) None() bool {
	return len(c.Added) == 0 && len(c.Changed) == 0 && len(c.Removed) == 0 && len(c.Sections) == 0
}

// String returns the changes as one line: `+ notes  ~ mine (args)  - old`.
func (c Changes) String() string {
	var parts []string
	for _, name := range c.Added {
		parts = append(parts, "+ "+name)
	}
	for _, changed := range c.Changed {
		parts = append(parts, fmt.Sprintf("~ %s (%s)", changed.Name, strings.Join(changed.What, ", ")))
	}
	for _, name := range c.Removed {
		parts = append(parts, "- "+name)
	}
	for _, name := range c.Sections {
		parts = append(parts, "~ x-dormouse."+name)
	}
	return strings.Join(parts, "  ")
}

// After returns how c differs from an earlier content of the same file. It also returns a copy of c
// that knows which servers were removed from the file, and when; see [File.Removed].
func (c *File) After(before *File, now time.Time) (*File, Changes) {
	next := *c
	next.removed = maps.Clone(before.removed)
	var changes Changes
	for _, name := range before.names {
		was, is := before.servers[name], c.servers[name]
		switch {
		case was.Disabled:
		case !c.has(name):
			changes.Removed = append(changes.Removed, name)
			if next.removed == nil {
				next.removed = map[string]string{}
			}
			next.removed[name] = fmt.Sprintf("server %s was removed from the servers file at %s", name, now.Format("15:04"))
		case c.Reason(name) != "":
			changes.Changed = append(changes.Changed, Change{name, []string{"not served: " + c.Reason(name)}})
		default:
			if what := was.differs(is); what != nil {
				changes.Changed = append(changes.Changed, Change{name, what})
			}
		}
	}
	for _, r := range c.rejected {
		known := func(old Rejection) bool { return old.Name == r.Name && old.Cause() == r.Cause() }
		if was, ok := before.servers[r.Name]; (!ok || was.Disabled) && !slices.ContainsFunc(before.rejected, known) {
			changes.Changed = append(changes.Changed, Change{r.Name, []string{"not served: " + r.Reason()}})
		}
	}
	for _, name := range c.names {
		if was, ok := before.servers[name]; c.Reason(name) == "" && (!ok || was.Disabled) {
			changes.Added = append(changes.Added, name)
		}
	}
	maps.DeleteFunc(next.removed, func(name, _ string) bool { return c.has(name) })
	for _, section := range []struct {
		name string
		same bool
	}{
		{"access", c.boxes == before.boxes && bytes.Equal(c.access, before.access)},
		{"connect", bytes.Equal(c.connect, before.connect)},
		{"groups", reflect.DeepEqual(c.groups, before.groups)},
		{"limits", bytes.Equal(c.limits, before.limits)},
	} {
		if !section.same {
			changes.Sections = append(changes.Sections, section.name)
		}
	}
	return &next, changes
}

// has reports whether the file has a server of that name, served or not.
func (c *File) has(name string) bool {
	_, ok := c.servers[name]
	return ok || slices.ContainsFunc(c.rejected, func(r Rejection) bool { return r.Name == name })
}

// Removed says when a server that was served was removed from the file, in words for its users: `server
// old was removed from the servers file at 12:41`. It is "" for any other name.
func (c *File) Removed(name string) string { return c.removed[name] }

// differs returns the parts in which s differs from another version of the server, nil for none.
func (s Server) differs(other Server) (what []string) {
	times := func(s Server) []time.Duration {
		return []time.Duration{s.Idle, s.StartupTimeout, s.ToolTimeout, s.AnswerTimeout}
	}
	for _, part := range []struct {
		name    string
		was, is any
	}{
		{"native", s.Native, other.Native},
		{"tools", s.Tools, other.Tools},
		{"audit", s.Audit, other.Audit},
		{"url", s.Remote.URL, other.Remote.URL},
		{"headers", append(hashed(s.Remote.Headers), hashed(s.Remote.Commands)...), append(hashed(other.Remote.Headers), hashed(other.Remote.Commands)...)},
		{"remote", [2]any{s.Remote.Transport, s.Remote.Private}, [2]any{other.Remote.Transport, other.Remote.Private}},
		{"command", s.Command, other.Command},
		{"args", append([]string{}, s.Args...), append([]string{}, other.Args...)},
		{"cwd", s.Cwd, other.Cwd},
		{"box", string(encode(s.Box)), string(encode(other.Box))},
		{"timeouts", times(s), times(other)},
		{"record", [3]bool{s.Record, s.OwnLists, s.SameLists}, [3]bool{other.Record, other.OwnLists, other.SameLists}},
		{"tasks", s.Tasks, other.Tasks},
	} {
		if !reflect.DeepEqual(part.was, part.is) {
			what = append(what, part.name)
		}
	}
	if !maps.Equal(s.Env, other.Env) || !maps.Equal(s.Commands, other.Commands) || !slices.Equal(s.Unset, other.Unset) {
		what = append(what, "env")
	}
	return what
}
