package catalog

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// longest bounds every time in the file; beyond a day it is a slip of units.
const longest = 24 * time.Hour

// serverReader reads one server.
type serverReader struct {
	*reader
	what   string // names the server in complaints
	key    member
	roots  []string // allowed_mount_roots of the file
	server Server
	times  map[string]bool // those that were set, wherever
	after  []func()        // what is read when every other key has been
}

func (r *serverReader) read() Server {
	r.server = Server{
		Name: r.key.name, Record: true,
		StartupTimeout: DefaultStartupTimeout, ToolTimeout: DefaultToolTimeout, AnswerTimeout: DefaultAnswerTimeout,
		Box: Box{Scope: ScopeSession, MountRoots: r.roots},
	}
	r.times = map[string]bool{}
	before := len(r.problems)
	// A disabled server may lack what it would need to run, so this comes first.
	r.server.Disabled = r.disabled(r.key.value)
	r.each(r.key.value, r.field)
	for _, read := range r.after {
		read()
	}
	if r.isNative() {
		return r.native()
	}
	r.beside()
	command, given := r.key.value.get("command")
	given = given && command.value.shape != null
	switch {
	case !given || command.value.shape == text && command.value.text == "":
		r.fail(r.key.at, "%s: missing command: give the program that starts it", r.what)
	case len(r.problems) == before && !r.server.Disabled:
		r.program(command.value)
	}
	r.server.Digest = r.server.digest()
	if size := len(r.server.Marshal()); size > MaxMarshal && len(r.problems) == before {
		r.fail(r.key.at, "%s: %d bytes in all, but a box takes at most %d: move long values into a file that the server reads", r.what, size, MaxMarshal)
	}
	return r.server
}

// isNative says that the file calls the server native, with a right name or not.
func (r *serverReader) isNative() bool {
	ours, _ := r.key.value.get("x-dormouse")
	name, ok := ours.value.get("native")
	return ok && name.value.shape != null
}

// native is a server that is part of the functions: nothing starts it, and it has no
// box. What it answers follows from a program that may be another tomorrow, so that
// there is no record of it.
func (r *serverReader) native() Server {
	for _, key := range []string{"command", "args", "env", "cwd"} {
		if m, ok := r.key.value.get(key); ok && m.value.shape != null {
			r.fail(m.at, "%s: %s is for a server that is started: leave it out beside native", r.what, key)
		}
	}
	ours, _ := r.key.value.get("x-dormouse") // isNative
	for _, key := range []string{"box", "idle_seconds", "startup_timeout_sec"} {
		if m, ok := ours.value.get(key); ok && m.value.shape != null {
			r.fail(m.at, "%s: %s is for a server in a box: leave it out beside native", r.what, key)
		}
	}
	r.server.Record = false
	r.server.Digest = r.server.digest()
	return r.server
}

// field reads one key. Keys of other clients that change nothing in how a server
// is started are passed over in silence, so a file can be used as it is. JSON
// null is the same as leaving the key out, but see disabled.
func (r *serverReader) field(m member) {
	if m.value.shape == null {
		return
	}
	switch m.name {
	case "command":
		r.server.Command = r.text(m.value, "command")
		if strings.Contains(r.server.Command, WorkspaceVariable) {
			r.fail(m.value.at, "%s: command: %s can stand in args and env only", r.what, WorkspaceVariable)
		}
	case "cwd":
		r.server.Cwd = r.text(m.value, "cwd")
		if strings.Contains(r.server.Cwd, WorkspaceVariable) {
			r.fail(m.value.at, "%s: cwd: a process works in %s anyway: leave cwd out", r.what, WorkspaceVariable)
		}
	case "args":
		if r.want(m.value, array, r.what+": args") {
			for i, item := range m.value.items {
				r.server.Args = append(r.server.Args, r.text(item, fmt.Sprintf("args[%d]", i)))
			}
		}
	case "env":
		if r.want(m.value, object, r.what+": env") {
			r.each(m.value, r.variable)
		}
	case "x-dormouse":
		if r.want(m.value, object, r.what+": x-dormouse") {
			r.additions(m.value)
		}
	case "type", "disabled", "enabled", "description", "name", "icon", "headers", "timeout", "trust", "tools",
		"autoApprove", "alwaysAllow", "includeTools", "excludeTools", "enabledTools", "disabledTools":
	case "idle_seconds", "startup_timeout_sec", "tool_timeout_sec", "answer_timeout_sec", "record", "tasks":
		r.warn(m.at, "%s: key %q is ignored here: move it under x-dormouse", r.what, m.name)
	default:
		r.warn(m.at, "%s: unknown key %q is ignored", r.what, m.name)
	}
}

func (r *serverReader) variable(m member) {
	if m.name == "" || strings.ContainsAny(m.name, "=\x00") {
		r.fail(m.at, "%s: env: %q cannot be the name of a variable", r.what, m.name)
		return
	}
	if r.server.Env == nil {
		r.server.Env = map[string]string{}
	}
	r.server.Env[m.name] = r.text(m.value, fmt.Sprintf("env %q", m.name))
}

// additions reads what stands under x-dormouse. The section box comes last: it may
// hold times, which may also stand above it, but not in both places, and the names
// of variables.
func (r *serverReader) additions(n node) {
	var box *member
	r.each(n, func(m member) {
		if m.name == "box" {
			box = &m
			return
		}
		r.addition(m)
	})
	if box == nil || box.value.shape == null || !r.want(box.value, object, r.what+": box") {
		return
	}
	r.after = append(r.after, func() { r.box(box.value) })
}

// addition reads one key under x-dormouse.
func (r *serverReader) addition(m member) {
	switch m.name {
	case "native":
		if r.server.Native = r.text(m.value, "native"); r.server.Native == "" && m.value.shape == text {
			r.fail(m.value.at, "%s: native must be the name of a server that is part of the functions", r.what)
		}
	case "record":
		switch mode := m.value.text; {
		case m.value.shape != text || mode != "on" && mode != "lists" && mode != "initialize" && mode != "off":
			r.fail(m.value.at, `%s: record must be "on", "lists", "initialize" or "off"`, r.what)
		default:
			r.server.Record, r.server.OwnLists, r.server.SameLists = mode != "off", mode == "initialize", mode == "lists"
		}
	case "tasks":
		switch mode := m.value.text; {
		case m.value.shape != text || mode != "auto" && mode != "always" && mode != "off":
			r.fail(m.value.at, `%s: tasks must be "auto", "always" or "off"`, r.what)
		case mode != "auto":
			r.server.Tasks = mode
		}
	case "enabled":
	default:
		if !r.time(m) {
			r.warn(m.at, "%s: unknown key %q under x-dormouse is ignored", r.what, m.name)
		}
	}
}

// time reads one of the times of a box; it is false if m is none.
func (r *serverReader) time(m member) bool {
	switch m.name {
	case "idle_seconds", "startup_timeout_sec", "tool_timeout_sec", "answer_timeout_sec":
	default:
		return false
	}
	if r.times[m.name] {
		r.fail(m.at, "%s: %s is set twice: leave it only under x-dormouse.box", r.what, m.name)
		return true
	}
	r.times[m.name] = true
	switch m.name {
	case "idle_seconds":
		r.seconds(m, &r.server.Idle, false)
	case "startup_timeout_sec":
		r.seconds(m, &r.server.StartupTimeout, false)
	case "tool_timeout_sec":
		r.seconds(m, &r.server.ToolTimeout, true)
	case "answer_timeout_sec":
		r.seconds(m, &r.server.AnswerTimeout, false)
	}
	return true
}

// seconds reads a time in seconds, fractions allowed; zero only where it means
// "no limit".
func (r *serverReader) seconds(m member, to *time.Duration, zero bool) {
	if !r.want(m.value, number, r.what+": "+m.name) {
		return
	}
	s := m.value.float()
	d := time.Duration(math.Min(s, 2*longest.Seconds()) * float64(time.Second))
	if s < 0 || d > longest || d == 0 && (!zero || s != 0) {
		least := "more than 0"
		if zero {
			least = "0, for no limit,"
		}
		r.fail(m.value.at, "%s: %s must be %s and at most %.0f seconds", r.what, m.name, least, longest.Seconds())
		return
	}
	*to = d
}

// disabled decides whether the server is launched. Our own key wins over those
// of other clients: a file may switch a server off there because it is hosted
// here. Whatever is not plainly true or false keeps the server off.
func (r *serverReader) disabled(n node) bool {
	if ours, ok := n.get("x-dormouse"); ok {
		if m, ok := ours.value.get("enabled"); ok {
			return r.flag(m, true)
		}
	}
	off := false
	if m, ok := n.get("disabled"); ok {
		off = r.flag(m, false)
	}
	if m, ok := n.get("enabled"); ok {
		off = r.flag(m, true) || off
	}
	return off
}

// flag says whether m switches the server off, where on is its value for "on".
func (r *serverReader) flag(m member, on bool) bool {
	if m.value.shape != boolean {
		r.warn(m.value.at, "%s: %s must be true or false: the server stays disabled", r.what, m.name)
		return true
	}
	return m.value.on != on
}

// text reads a string and expands its variables. Complaints name the field and
// the variable, never the string or the variable's value.
func (r *serverReader) text(n node, field string) string {
	field = r.what + ": " + field
	if !r.want(n, text, field) {
		return ""
	}
	e := expand(n.text, r.getenv)
	if e.odd {
		r.warn(n.at, "%s: ${…} is left as it is where it is not ${NAME} or ${NAME:-default}", field)
	}
	slices.Sort(e.missing)
	for _, name := range slices.Compact(e.missing) {
		if r.server.Disabled {
			r.warn(n.at, "%s: %s is not set; the server is disabled, so it is left empty", field, name)
			continue
		}
		r.fail(n.at, "%s: %s is not set: set it, or write ${%s:-default}", field, name, name)
	}
	if !utf8.ValidString(e.text) || strings.Contains(e.text, "\x00") {
		r.fail(n.at, "%s: a NUL character or bytes that are not UTF-8 cannot be passed to a process", field)
	}
	return e.text
}

// program refuses what cannot be started whatever is installed. The usual slip is
// a command line in the place of a command: no shell splits it, so the box would
// look for a program with spaces in its name. A path with spaces is fine when it
// exists; when it does not exist here it may still exist in the box, so unless it
// is plainly a command line that is a warning.
func (r *serverReader) program(n node) {
	command := r.server.Command
	words := strings.Fields(command)
	switch {
	case command == "":
		r.fail(n.at, "%s: command is empty once its variables are put in", r.what)
		return
	case strings.TrimSpace(command) != command:
		r.fail(n.at, "%s: command begins or ends with a space: remove it", r.what)
		return
	case len(words) < 2 || r.exists(command):
		return
	}
	option := slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
	if strings.ContainsAny(words[0], `/\`) && !option {
		r.warn(n.at, "%s: command holds spaces and there is no such file here: if these are arguments, move them into args", r.what)
		return
	}
	// Only the first word is shown, and as it stands in the file: the rest of it,
	// and what its variables hold, may be secret.
	r.fail(n.at, `%s: command and arguments stand in one string: split it into "command": %q and "args": ["…", "…"]`,
		r.what, strings.Fields(n.text)[0])
}

func (r *serverReader) exists(command string) bool {
	if !filepath.IsAbs(command) {
		command = filepath.Join(r.server.Cwd, command)
	}
	info, err := os.Stat(command)
	return err == nil && !info.IsDir()
}
