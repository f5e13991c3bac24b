package catalog

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// longest limits every time in the file. A longer time is probably in the wrong unit.
const longest = 24 * time.Hour

// serverReader reads one server.
type serverReader struct {
	*reader
	what      string // names the server in complaints
	key       member
	roots     []string // allowed_mount_roots of the file
	server    Server
	program   node              // the command
	said      []string          // missing keys whose absence was explained already
	inEnv     bool              // the string that text reads is a variable of env
	elsewhere map[string]string // variables from other keys than env
	times     map[string]bool   // the times that were set, in x-dormouse or in its section box
	after     []func()          // reads that come after all other keys
}

func (r *serverReader) read() Server {
	r.server = Server{
		Name: r.key.name, Record: true,
		StartupTimeout: DefaultStartupTimeout, ToolTimeout: DefaultToolTimeout, AnswerTimeout: DefaultAnswerTimeout,
		Box: Box{Scope: ScopeSession, MountRoots: r.roots},
	}
	if r.folder != "" {
		r.server.Path, _ = r.getenv("PATH")
	}
	r.times = map[string]bool{}
	before := len(r.problems)
	// Read this first: a disabled server may lack settings that it would need to run.
	r.server.Disabled = r.disabled(r.key.value)
	r.fields(r.key.value, r.what, entryKeys())
	for _, read := range r.after {
		read()
	}
	if r.isNative() {
		return r.native()
	}
	if r.isRemote() {
		return r.remote()
	}
	for name, value := range r.elsewhere {
		if _, ok := r.server.Env[name]; !ok && !slices.Contains(r.server.Unset, name) {
			if r.server.Env == nil {
				r.server.Env = map[string]string{}
			}
			r.server.Env[name] = value
		}
	}
	slices.Sort(r.server.Unset)
	r.guest()
	r.beside()
	switch {
	case slices.Contains(r.said, "command"):
	case r.program.shape == "" || r.program.shape == text && r.program.text == "":
		r.fail(r.key.at, "%s: missing command: give the program that starts it", r.what)
	case len(r.problems) == before && !r.server.Disabled:
		r.checkProgram(r.program)
	}
	r.principal()
	r.server.Digest = r.server.digest()
	if size := len(r.server.Marshal()); size > MaxMarshal && len(r.problems) == before {
		r.fail(r.key.at, "%s: %d bytes in all, but a box takes at most %d: move long values into a file that the server reads", r.what, size, MaxMarshal)
	}
	return r.server
}

// isNative reports whether the file calls the server native, even if the name is wrong.
func (r *serverReader) isNative() bool {
	ours, _ := r.key.value.get("x-dormouse")
	name, ok := ours.value.get("native")
	return ok && name.value.shape != null
}

// native returns a server that is part of the functions: it is not started, and has no
// box. Its answers come from a program that may change with the next deployment, so it
// gets no handshake record.
func (r *serverReader) native() Server {
	for _, key := range append([]string{"command", "args", "env", "cwd"}, urlKeys()...) {
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

// field reads one key of a server. It is nil for a key that does not change how a server
// is started.
type field func(r *serverReader, m member)

// readBefore is the field of a key that is read before all others.
func readBefore(*serverReader, member) {}

// entryKeys returns the keys of a server. It includes keys of other clients, so that
// their files can be used unchanged.
func entryKeys() map[string]field {
	keys := map[string]field{
		"command": (*serverReader).command, "args": (*serverReader).args, "env": (*serverReader).env, "cwd": (*serverReader).cwd,
		"envFile": (*serverReader).envFile, "x-dormouse": (*serverReader).ours,
		"url": (*serverReader).url, "serverUrl": (*serverReader).url, "httpUrl": (*serverReader).url,
		"headers": (*serverReader).headers, "http_headers": (*serverReader).headers,
		"bearer_token_env_var": (*serverReader).bearer, "env_http_headers": (*serverReader).envHeaders, "type": (*serverReader).kind,
		"env_vars": (*serverReader).envVars, "source": (*serverReader).source,
		"disabled": readBefore, "enabled": readBefore,
	}
	for _, key := range []string{
		"description", "name", "icon", "timeout", "trust", "tools", "inputs", "gallery", "version", "dev",
		"autoApprove", "alwaysAllow", "includeTools", "excludeTools", "enabledTools", "disabledTools", "enabled_tools", "disabled_tools",
		"sandbox", "sandboxEnabled", "settings", "required", "supports_parallel_tool_calls", "startup_timeout_ms",
	} {
		keys[key] = nil
	}
	for _, key := range []string{"idle_seconds", "startup_timeout_sec", "tool_timeout_sec", "answer_timeout_sec", "record", "tasks"} {
		keys[key] = (*serverReader).misplaced
	}
	return keys
}

// fields reads the keys of n, each with its function in keys. JSON null counts as a
// missing key, but see disabled.
func (r *serverReader) fields(n node, what string, keys map[string]field) {
	var known []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if keys[key] != nil {
			known = append(known, key)
		}
	}
	r.each(n, func(m member) {
		switch read, ok := keys[m.name]; {
		case !ok:
			if meant := r.unknown(m, what, n, known); meant != "" {
				r.said = append(r.said, meant)
			}
		case read != nil && m.value.shape != null:
			read(r, m)
		}
	})
}

func (r *serverReader) command(m member) {
	r.program = m.value
	r.server.Command = r.path(m.value, "command")
	if strings.Contains(r.server.Command, WorkspaceVariable) {
		r.fail(m.value.at, "%s: command: %s can stand in args and env only", r.what, WorkspaceVariable)
	}
}

func (r *serverReader) cwd(m member) {
	r.server.Cwd = r.path(m.value, "cwd")
	if strings.Contains(r.server.Cwd, WorkspaceVariable) {
		r.fail(m.value.at, "%s: cwd: a process works in %s anyway: leave cwd out", r.what, WorkspaceVariable)
	}
}

func (r *serverReader) args(m member) {
	if !r.want(m.value, array, r.what+": args") {
		return
	}
	var before node
	for i, item := range m.value.items {
		r.server.Args = append(r.server.Args, r.arg(item, before, fmt.Sprintf("args[%d]", i)))
		before = item
	}
}

func (r *serverReader) env(m member) {
	if r.want(m.value, object, r.what+": env") {
		r.each(m.value, r.variable)
	}
}

func (r *serverReader) ours(m member) {
	if r.want(m.value, object, r.what+": x-dormouse") {
		r.additions(m.value)
	}
}

// misplaced handles a key of x-dormouse that stands outside of x-dormouse, beside the
// keys of all clients.
func (r *serverReader) misplaced(m member) {
	r.warn(m.at, "%s: key %q is ignored here: move it under x-dormouse", r.what, m.name)
}

// source reads Zed's key for the program that starts the server.
func (r *serverReader) source(m member) {
	if m.value.text == "extension" {
		r.said = append(r.said, "command")
		r.fail(m.at, "%s: an extension of Zed starts it: write the command that starts it, and \"source\": \"custom\"", r.what)
	}
}

// envVars reads the names of variables that Codex passes on unchanged, if they are set.
func (r *serverReader) envVars(m member) {
	if !r.want(m.value, array, r.what+": env_vars") {
		return
	}
	for _, item := range m.value.items {
		if name, ok := item.get("name"); ok {
			item = name.value
		}
		if !r.want(item, text, r.what+": env_vars") {
			continue
		}
		if value, ok := r.getenv(item.text); ok {
			r.setenv(item.text, value)
		}
	}
}

// setenv sets a variable that comes from another key than env. A variable in env wins.
func (r *serverReader) setenv(name, value string) {
	if r.elsewhere == nil {
		r.elsewhere = map[string]string{}
	}
	r.elsewhere[name] = value
}

// variable reads a variable of the process. One that is null is none, whatever the machine's
// own environment has.
func (r *serverReader) variable(m member) {
	if m.name == "" || strings.ContainsAny(m.name, "=\x00") {
		r.fail(m.at, "%s: env: %q cannot be the name of a variable", r.what, m.name)
		return
	}
	of := func(name string) bool { return name == m.name }
	r.server.Unset = slices.DeleteFunc(r.server.Unset, of)
	if m.value.shape == null {
		delete(r.server.Env, m.name)
		r.server.Unset = append(r.server.Unset, m.name)
		return
	}
	if r.server.Env == nil {
		r.server.Env = map[string]string{}
	}
	r.inEnv = true
	r.server.Env[m.name] = r.text(scalar(m.value), fmt.Sprintf("env %q", m.name))
	r.inEnv = false
}

// additions reads x-dormouse. It reads the section box last. Times may be in box or
// above it, but not in both places. box may also hold names of variables.
func (r *serverReader) additions(n node) {
	r.fields(n, r.what+": x-dormouse", additionKeys())
}

// additionKeys are the keys under x-dormouse.
func additionKeys() map[string]field {
	keys := map[string]field{
		"native": (*serverReader).nativeName, "remote": (*serverReader).remoteSettings, "record": (*serverReader).record, "tasks": (*serverReader).tasks,
		"enabled": readBefore, "tools": (*serverReader).tools,
		"box": func(r *serverReader, m member) {
			if r.want(m.value, object, r.what+": box") {
				r.after = append(r.after, func() { r.box(m.value) })
			}
		},
	}
	maps.Copy(keys, timeKeys())
	return keys
}

func timeKeys() map[string]field {
	keys := map[string]field{}
	for _, key := range []string{"idle_seconds", "startup_timeout_sec", "tool_timeout_sec", "answer_timeout_sec"} {
		keys[key] = (*serverReader).time
	}
	return keys
}

func (r *serverReader) nativeName(m member) {
	if r.server.Native = r.text(m.value, "native"); r.server.Native == "" && m.value.shape == text {
		r.fail(m.value.at, "%s: native must be the name of a server that is part of the functions", r.what)
	}
}

func (r *serverReader) record(m member) {
	if mode := r.oneOf(m, "on", "lists", "initialize", "off"); mode != "" {
		r.server.Record, r.server.OwnLists, r.server.SameLists = mode != "off", mode == "initialize", mode == "lists"
	}
}

func (r *serverReader) tasks(m member) {
	if mode := r.oneOf(m, "auto", "always", "off"); mode != "auto" {
		r.server.Tasks = mode
	}
}

// time reads one of the times of a server.
func (r *serverReader) time(m member) {
	if r.times[m.name] {
		r.fail(m.at, "%s: %s is set twice: leave it only under x-dormouse.box", r.what, m.name)
		return
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
}

// seconds reads a time in seconds, with fractions. zero permits 0, which means "no
// limit".
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

// disabled decides whether the server is started. dormouse's own key wins over the keys of
// other clients: a file may switch a server off in other clients because dormouse hosts
// it. A value that is neither true nor false keeps the server off.
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

// flag reports whether m switches the server off; on is the value of m that leaves a
// server on.
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
	return r.textWith(n, field, variables{getenv: r.getenv})
}

func (r *serverReader) textWith(n node, field string, v variables) string {
	field = r.what + ": " + field
	if !r.want(n, text, field) {
		return ""
	}
	e := v.expand(n.text)
	if e.odd {
		r.warn(n.at, "%s: ${…} is left as it is where it is not ${NAME} or ${NAME:-default}", field)
	}
	if e.of && !r.inEnv {
		r.fail(n.at, "%s: ${principal:…} can stand in env, and in headers of a remote server: others can see the rest", field)
	}
	for _, what := range e.editor {
		r.fail(n.at, "%s: only the editor can fill in %s: write the value, or ${NAME} and set NAME", field, what)
	}
	slices.Sort(e.missing)
	for _, name := range slices.Compact(e.missing) {
		todo := fmt.Sprintf("%s, or write ${%s:-default}", r.set("it"), name)
		r.lacks(n.at, field, name+" is not set", todo, &Variable{Name: name, Secret: true})
	}
	for _, id := range e.inputs {
		name := InputVariable(id)
		if _, set := r.getenv(name); !set {
			r.lacks(n.at, field, fmt.Sprintf("the input %q has no value", id), r.set(name), &Variable{Name: name, Input: id})
		}
	}
	if !utf8.ValidString(e.text) || strings.Contains(e.text, "\x00") {
		r.fail(n.at, "%s: a NUL character or bytes that are not UTF-8 cannot be passed to a process", field)
	}
	return e.text
}

// set returns the words for an error that say how to set a variable.
func (r *serverReader) set(name string) string {
	if r.folder == "" {
		return "set " + name
	}
	return "set " + name + " in the environment, in .env beside the file, or with --env-file"
}

// lacks complains about a missing value: that of the variable v, if v is not nil. For a
// disabled server it only warns.
func (r *serverReader) lacks(at int, field, what, todo string, v *Variable) {
	if r.server.Disabled {
		r.warn(at, "%s: %s; the server is disabled, so it is left empty", field, what)
		return
	}
	r.fail(at, "%s: %s: %s", field, what, todo)
	r.problems[len(r.problems)-1].lacks = v
}

// checkProgram refuses a command that can never be started. The usual mistake is a whole
// command line in the place of a command. No shell splits it, so the box would look for a
// program with spaces in its name. A path with spaces is right if it exists. If it does
// not exist here, it may still exist in the box. So checkProgram refuses it only if it is
// plainly a command line, and otherwise only warns.
func (r *serverReader) checkProgram(n node) {
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
		r.checkPackage(n)
		return
	}
	option := slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
	if strings.ContainsAny(words[0], `/\`) && !option {
		r.warn(n.at, "%s: command holds spaces and there is no such file here: if these are arguments, move them into args", r.what)
		return
	}
	// The message shows only the first word, as the file has it. The rest, and values of
	// variables, may be secret.
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
