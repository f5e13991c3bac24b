package serversfile

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

type serverReader struct {
	*reader
	what      string // names the server in complaints
	key       member
	server    Server
	program   node              // the command
	excused   bool              // a complaint already says why there is no command
	elsewhere map[string]string // variables from other keys than env, which wins
}

func (r *serverReader) readServer() Server {
	before, started := len(r.problems), []string{"command", "args", "env", "envFile", "env_vars", "cwd"}
	entry, s := r.key.value, &r.server
	*s = Server{Name: r.key.name, Record: true, Audit: r.audit}
	if r.folder != "" {
		s.Path, _ = r.getenv("PATH")
	}
	settings, ofBox := r.serverSettings(), r.boxSettings()
	defaults(settings)
	defaults(ofBox)
	ours, _ := entry.get("x-dormouse") // an empty node if there is none
	remote := slices.ContainsFunc(urlKeys(), func(key string) bool { return has(entry, key) })
	// Read disabled first: a disabled server may lack settings that it would need to run.
	s.Disabled = r.disabled(entry, ours.value)
	if slices.Contains(r.read(entry, section{name: r.what, label: r.what + ": ", settings: r.entryKeys(remote, settings)}), "command") {
		r.excused = true
	}
	if m, ok := ours.value.get("remote"); ok && m.value.shape == object && !remote {
		r.fail(m.at, "%s: remote is for a server with a url", r.what)
	}
	if m, ok := ours.value.get("box"); ok && m.value.shape != null {
		r.box(m, ofBox, has(ours.value, "tool_timeout_sec"))
	}
	switch {
	case has(ours.value, "native"): // s.Native is "" if its value is invalid
		// The server is part of this program: it is not started, and has no box. Its answers are
		// not stored, because the program may change with the next deployment.
		r.refuse(entry, false, "native", append(started, urlKeys()...)...)
		r.refuse(ours.value, true, "native", "box", "idle_seconds", "startup_timeout_sec")
		s.Record = false
	case remote:
		// Dormouse starts nothing, so there is no box. The server's lists are not stored, because
		// Dormouse asks for them each time.
		for _, key := range started {
			if m, _ := entry.get(key); key == "command" || m.value.filled() {
				r.refuse(entry, false, "the url", key)
			}
		}
		r.refuse(ours.value, true, "the url", "box", "idle_seconds")
		if !has(ours.value, "startup_timeout_sec") {
			s.StartupTimeout = DefaultRemoteStartup
		}
		s.Record, s.OwnLists, s.SameLists = false, false, false
	default:
		r.process(before)
	}
	s.Digest = s.digest()
	return *s
}

// process completes and checks r.server, which is started in a box.
func (r *serverReader) process(before int) {
	s := &r.server
	for name, value := range r.elsewhere {
		if _, ok := s.Env[name]; !ok && s.Commands[name] == "" && !slices.Contains(s.Unset, name) {
			put(&s.Env, name, value)
		}
	}
	slices.Sort(s.Unset)
	// The client of a container engine gets no sandbox: its containers are confined anyway, and it
	// needs the socket of the engine.
	if b := &s.Box; r.guests && b.Profile == "" && !b.Free && !slices.Contains(engines(), filepath.Base(s.Command)) {
		b.Guest, b.ReadOnlyRootFS = true, true
	}
	s.beside(r.folder)
	switch {
	case r.excused:
	case r.program.shape == "" || r.program.shape == text && r.program.text == "":
		r.fail(r.key.at, "%s: missing command: give the program that starts it", r.what)
	case len(r.problems) == before && !s.Disabled:
		r.checkProgram()
	}
	// The value of ${principal:NAME} belongs to one principal, and no other may read it.
	if names := s.Principal(); len(names) > 0 && s.Box.Scope == ScopeShared {
		at := r.key.at
		if env, ok := r.key.value.get("env"); ok {
			at = env.at
		}
		r.fail(at, "%s: scope \"shared\" gives all users one process, and ${%s:%s} is of one user: take scope \"session\" or \"principal\"", r.what, principalKind, names[0])
	}
	if size := len(s.Marshal()); size > MaxMarshal && len(r.problems) == before {
		r.fail(r.key.at, "%s: %d bytes in all, but a box takes at most %d: move long values into a file that the server reads", r.what, size, MaxMarshal)
	}
}

// has reports whether n has a value of that name. JSON null counts as a missing key.
func has(n node, key string) bool {
	m, ok := n.get(key)
	return ok && m.value.shape != null
}

// filled reports whether a value is a number, or else a text, an array or an object that is not empty.
func (n node) filled() bool { return len(n.members)+len(n.items)+len(n.text) > 0 }

// refuse complains about each of the given keys that n has. These keys make sense only for a server
// that is started, or, if box is true, for a server in a box. The argument beside is the setting
// that excludes them.
func (r *serverReader) refuse(n node, box bool, beside string, keys ...string) {
	of := "that is started"
	if box {
		of = "in a box"
	}
	for _, key := range keys {
		if m, _ := n.get(key); has(n, key) {
			r.fail(m.at, "%s: %s is for a server %s: leave it out beside %s", r.what, key, of, beside)
		}
	}
}

// entryKeys returns the keys of a server, with those that only MCP clients read, so that their files can
// be used unchanged. Keys that are read elsewhere, or not at all, have a nil kind.read.
func (r *serverReader) entryKeys(remote bool, ours []setting) []setting {
	s := &r.server
	keys := []setting{
		{key: "command", kind: kind{read: func(m member, _ string) {
			r.program = m.value
			if s.Command = r.path(m.value, "command"); strings.Contains(s.Command, WorkspaceVariable) {
				r.fail(m.value.at, "%s: command: %s can stand in args and env only", r.what, WorkspaceVariable)
			}
		}}},
		{key: "args", kind: kind{read: func(m member, what string) {
			if !r.want(m.value, array, what) {
				return
			}
			var before node
			for i, item := range m.value.items {
				s.Args = append(s.Args, r.arg(item, before, fmt.Sprintf("args[%d]", i)))
				before = item
			}
		}}},
		{key: "env", kind: kind{read: func(m member, what string) {
			if r.want(m.value, object, what) {
				r.each(m.value, r.variable)
			}
		}}},
		{key: "cwd", kind: kind{read: func(m member, _ string) {
			if s.Cwd = r.path(m.value, "cwd"); strings.Contains(s.Cwd, WorkspaceVariable) {
				r.fail(m.value.at, "%s: cwd: a process works in %s anyway: leave cwd out", r.what, WorkspaceVariable)
			}
		}}},
		{key: "envFile", kind: kind{read: r.envFile}},
		{key: "env_vars", kind: kind{read: r.envVars}},
		{key: "source", kind: kind{read: func(m member, _ string) {
			if m.value.text == "extension" {
				r.excused = true
				r.fail(m.at, "%s: an extension of Zed starts it: write the command that starts it, and \"source\": \"custom\"", r.what)
			}
		}}},
		{key: "type", kind: kind{read: func(m member, what string) { r.transport(m, what, remote) }}},
		{key: "x-dormouse", kind: r.object(section{name: r.what + ": x-dormouse", label: r.what + ": ", settings: ours})},
	}
	for _, key := range urlKeys() {
		keys = append(keys, setting{key: key, kind: kind{read: r.url}})
	}
	for _, key := range []string{"headers", "http_headers", "env_http_headers", "bearer_token_env_var"} {
		keys = append(keys, setting{key: key, kind: kind{read: func(m member, what string) {
			if remote {
				r.headers(m, what)
			} else if m.value.filled() {
				r.warn(m.at, "%s: key %q is ignored here: it is for a server with a url", r.what, m.name)
			}
		}}})
	}
	for _, key := range []string{"disabled", "enabled"} {
		keys = append(keys, setting{key: key})
	}
	for _, key := range []string{
		"description", "name", "icon", "timeout", "trust", "tools", "inputs", "gallery", "version", "dev",
		"autoApprove", "alwaysAllow", "includeTools", "excludeTools", "enabledTools", "disabledTools", "enabled_tools", "disabled_tools",
		"sandbox", "sandboxEnabled", "settings", "required", "supports_parallel_tool_calls", "startup_timeout_ms",
	} {
		keys = append(keys, setting{key: key, kind: kind{values: ignored}})
	}
	return keys
}

// envVars reads the names of variables that Codex passes on unchanged, if they are set.
func (r *serverReader) envVars(m member, what string) {
	if !r.want(m.value, array, what) {
		return
	}
	for _, item := range m.value.items {
		if name, ok := item.get("name"); ok {
			item = name.value
		}
		if !r.want(item, text, what) {
			continue
		}
		if value, ok := r.getenv(item.text); ok {
			r.elsewhere[item.text] = value
		}
	}
}

// put adds an entry to a map, which may be nil.
func put(to *map[string]string, key, value string) {
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[key] = value
}

// variable reads a variable of the process. If its value is null, the process does not get the
// variable, even if the machine's own environment has it.
func (r *serverReader) variable(m member) {
	if m.name == "" || strings.ContainsAny(m.name, "=\x00") {
		r.fail(m.at, "%s: env: %q cannot be the name of a variable", r.what, m.name)
		return
	}
	s := &r.server
	s.Unset = slices.DeleteFunc(s.Unset, func(name string) bool { return name == m.name })
	if m.value.shape == null {
		delete(s.Env, m.name)
		s.Unset = append(s.Unset, m.name)
		return
	}
	if command, ok := r.command(m.value, fmt.Sprintf("env %q", m.name)); ok {
		put(&s.Commands, m.name, command)
		return
	}
	put(&s.Env, m.name, r.textWith(scalar(m.value), fmt.Sprintf("env %q", m.name), variables{getenv: r.getenv, principals: true}))
}

// disabled reports whether the file switches the server off. The key x-dormouse.enabled wins over those
// of MCP clients: a server may be off in a client because Dormouse hosts it. A value that is neither
// true nor false switches it off.
func (r *serverReader) disabled(entry, ours node) bool {
	off := func(n node, key string, on bool) bool {
		m, ok := n.get(key)
		if ok && m.value.shape != boolean {
			r.warn(m.value.at, "%s: %s must be true or false: the server stays disabled", r.what, key)
			return true
		}
		return ok && m.value.on != on
	}
	if _, ok := ours.get("enabled"); ok {
		return off(ours, "enabled", true)
	}
	disabled := off(entry, "disabled", false)
	return off(entry, "enabled", true) || disabled
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
	if v.principals && strings.HasPrefix(e.text, execPrefix) {
		r.warn(n.at, "%s: exec: is executed only where the servers file itself has it, not in the value of a variable", field)
	}
	if e.secret && !v.principals {
		r.fail(n.at, "%s: ${principal:…} can stand in env, and in headers of a remote server: others can see the rest", field)
	}
	for _, what := range e.editor {
		r.fail(n.at, "%s: only the editor can fill in %s: write the value, or ${NAME} and set NAME", field, what)
	}
	to := func(name string) string {
		if r.folder == "" {
			return "set " + name
		}
		return "set " + name + " in the environment, in .env beside the file, or with --env-file"
	}
	slices.Sort(e.missing)
	for _, name := range slices.Compact(e.missing) {
		todo := fmt.Sprintf("%s, or write ${%s:-default}", to("it"), name)
		r.lacks(n.at, field, name+" is not set", todo, &Variable{Name: name, Secret: true})
	}
	for _, id := range e.inputs {
		name := InputVariable(id)
		if _, set := r.getenv(name); !set {
			r.lacks(n.at, field, fmt.Sprintf("the input %q has no value", id), to(name), &Variable{Name: name, Input: id})
		}
	}
	if !utf8.ValidString(e.text) || strings.Contains(e.text, "\x00") {
		r.fail(n.at, "%s: a NUL character or bytes that are not UTF-8 cannot be passed to a process", field)
	}
	return e.text
}

// lacks complains about a missing value; for a disabled server it only warns. The argument v is the
// variable whose value is missing, or nil.
func (r *serverReader) lacks(at int, field, what, todo string, v *Variable) {
	if r.server.Disabled {
		r.warn(at, "%s: %s; the server is disabled, so it is left empty", field, what)
		return
	}
	r.fail(at, "%s: %s: %s", field, what, todo)
	r.problems[len(r.problems)-1].lacks = v
}

// checkProgram refuses a command that can never be started. The usual mistake is a whole command
// line in the place of a command. A path with spaces is right if it exists, and it may exist only
// in the box.
func (r *serverReader) checkProgram() {
	n, command := r.program, r.server.Command
	path := command
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.server.Cwd, path)
	}
	words := strings.Fields(command)
	switch {
	case len(words) == 0:
		r.fail(n.at, "%s: command is empty once its variables are put in", r.what)
	case len(words) == 1 || exists(path) || strings.Contains(words[0], "/") && !strings.Contains(command, " -"):
		if runner := r.server.lacksPackage(); runner != "" {
			r.fail(n.at, "%s: %s needs the name of a package in args", r.what, runner)
		}
	default:
		// The message shows only the first word, as the file has it. The rest of the line, and values of
		// variables, may be secret.
		r.fail(n.at, `%s: command and arguments stand in one string: split it into "command": %q and "args": ["…", "…"]`,
			r.what, strings.Fields(n.text)[0])
	}
}
