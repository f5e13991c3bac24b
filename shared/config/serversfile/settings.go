package serversfile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// setting is a key below x-dormouse. The tables in this Go file list all settings, and a test writes
// docs/servers-file.md from them.
type setting struct {
	key  string
	kind kind
	// def is the default as JSON, "" for none. One in parentheses is only for the page, and sets no
	// value.
	def  string
	text string // for the page, which leaves out a key without one
}

// kind says how the value of a setting is read.
type kind struct {
	values string                      // allowed values, for the page docs/servers-file.md
	read   func(m member, what string) // the argument what is the name for the key in complaints; read is nil if the key is read elsewhere
	below  []setting                   // the settings in it, if it is an object
}

// section is an object with settings.
type section struct {
	name     string // in complaints about unknown keys
	label    string // the words before a key in all other complaints
	nulls    bool   // null is a value; otherwise null counts as a missing key
	settings []setting
}

func (r *serverReader) serverSettings() []setting {
	s := &r.server
	return []setting{
		{"idle_seconds", r.seconds(&s.Idle, false), "(120)", "a process ends after this time without work. The default on Lambda is 4"},
		{"startup_timeout_sec", r.seconds(&s.StartupTimeout, false), "300", "limit for installation, start and answer to `initialize` together. 30 for a remote server"},
		{"tool_timeout_sec", r.seconds(&s.ToolTimeout, true), "300", "limit for a `tools/call` or another request; 0 turns it off. Profiles have their own"},
		{"answer_timeout_sec", r.seconds(&s.AnswerTimeout, false), "21600", "how long a call waits for a human's answer. The call's own limit stands still meanwhile"},
		{"record", r.word(func(mode string) {
			s.Record, s.OwnLists, s.SameLists = mode != "off", mode == "initialize", mode == "lists"
		}, "on", "lists", "initialize", "off"), `"on"`, "which handshakes and lists come from the handshake record, [see below](#lists-without-a-process)"},
		{"tasks", r.word(func(mode string) {
			if s.Tasks = mode; mode == "auto" {
				s.Tasks = ""
			}
		}, "auto", "always", "off"), `"auto"`, "which calls become [tasks](clients.md#tasks), for clients that declare them"},
		{"remote", r.object(section{name: r.what + ": x-dormouse.remote", label: r.what + ": remote.", settings: []setting{
			{"private", r.flag(&s.Remote.Private), "false", "lets the `url` of a [remote server](remote-servers.md) lead to this machine or a private network"},
		}}), "", ""},
		{"tools", r.object(section{name: r.what + ": x-dormouse.tools", label: r.what + ": tools.", nulls: true, settings: []setting{
			{"allow", r.names(&s.Tools.Allow), "(all)", "the tools that are listed and can be called: names, or patterns such as `*delete*`"},
			{"deny", r.names(&s.Tools.Deny), "(none)", "the tools that are not. The longest entry that fits a tool counts, and `deny` of two as long"},
			{"pin", kind{values: trueOrFalse, read: func(m member, what string) {
				if r.want(m.value, boolean, what) {
					on := m.value.on
					s.Tools.Pin = &on
				}
			}}, "(for servers that [others may change](held-tools.md#for-which-servers))", "[holds tools](held-tools.md): clients see them as they were first listed, until you accept others"},
			{"descriptions", kind{values: "texts by name, 16 KiB together", read: r.descriptions}, "(none)", "`{\"search\": \"Searches our wiki\"}` replaces what the server says about a tool"},
		}}), "", ""},
		{"audit", r.audits(r.what+": ", &s.Audit, `(that of the file)`, `(those of the file)`), "", ""},
		{"enabled", kind{values: trueOrFalse}, "(true)", "`false` takes the server out of service"},
		{"native", kind{values: "a name", read: func(m member, _ string) {
			if s.Native = r.text(m.value, "native"); s.Native == "" && m.value.shape == text {
				r.fail(m.value.at, "%s: native must be the name of a server that is part of the functions", r.what)
			}
		}}, "(none)", "the name of a [server in Go](go-servers.md) that is part of the program"},
		{"box", kind{values: "an object"}, "(none)", "the rights and limits of the process, [see below](#the-box-of-a-server-x-dormousebox)"},
	}
}

func (r *serverReader) boxSettings() []setting {
	b := &r.server.Box
	return []setting{
		{"profile", kind{values: wordsOf(append(slices.Sorted(maps.Keys(profiles())), noProfile))}, "(none, or [that of guests](sandbox.md#when-others-can-call))", "a sandbox with limits: [which](sandbox.md#choose-a-profile). `\"none\"`: no profile, although others can call"},
		{"network", kind{values: "`\"on\"`, `\"off\"`, or a list of hosts", read: r.network}, `"on"`, "`\"off\"`: no network. A list such as `[\"api.github.com\", \"*.slack.com:443\"]` [seals](sandbox.md#sealed) the server, which then reaches [these hosts only](sandbox.md#which-hosts-a-server-calls)"},
		{"memory_mb", r.whole(&b.MemoryMB, 16, 1<<20), "(none)", "limit of each process [together](sandbox.md#choose-a-profile) with what it starts; on AWS the box has at least as much"},
		{"cpus", r.number(&b.CPUs, 0.01, 64), "(none)", "how many processors each process may use with what it starts, rounded up to whole ones; on AWS a task of Fargate has at least as many"},
		{"pids_limit", r.whole(&b.Pids, 1, 1<<16), "(none)", "limit of processes and threads of each process with what it starts, where the system [can keep it](sandbox.md)"},
		{"read_only_rootfs", r.flag(&b.ReadOnlyRootFS), "false", "the process writes only to its workspace and a temporary folder, and reads [what one with a profile does](sandbox.md#choose-a-profile)"},
		{"host_path", kind{values: "a path, or `\"auto\"`", read: func(m member, _ string) { b.HostPath = r.path(m.value, "host_path") }}, "(none)", "a folder that is copied to the workspace, with its Python or Node dependencies installed. `\"auto\"`: the folder of the program"},
		{"host_path_mode", r.word(func(mode string) { b.HostPathWritable = mode == "rw" }, "ro", "rw"), `"ro"`, "`\"rw\"`: the folder itself"},
		{"env", kind{values: "variables", read: func(m member, _ string) { // these variables replace those of the key env, which all clients read
			if r.want(m.value, object, r.what+": box env") {
				r.each(m.value, r.variable)
			}
		}}, "(none)", "variables for the process that other clients do not get"},
		{"secrets", r.names(&b.Secrets), "(none)", "variables whose values are hidden in logs and errors although they are short"},
		{"scope", r.word(func(scope string) { b.Scope = Scope(scope) }, "session", "principal", "shared"), `"session"`, "the sessions that share a process. `\"session\"`: each has its own. `\"principal\"`: those of a principal. `\"shared\"`: those of a tenant, which may see each other's log lines"},
		{"snapshot", r.word(func(of string) { b.Snapshot = Snapshot(of) }, "off", "session", "principal"), "(that of `scope`, with a workspace)", "the workspace comes back after a sleep. `\"principal\"`: a process begins with the workspace of the process of its principal that stopped last. `\"off\"`: none"},
		{"install_scripts", r.flag(&b.InstallScripts), "false", "packages may run their own code during installation: [with which rights](../SECURITY.md#what-protects-what)"},
		{"sealed", r.flag(&b.Sealed), "false", "the server runs in [a kernel of its own](sandbox.md#sealed), on one Linux machine"},
		{"memory", r.word(func(of string) { b.Memory = of == "keep" }, "off", "keep"), `"off"`, "`\"keep\"`: the process [sleeps with its memory](sandbox.md#memory-that-lasts). It seals the server"},
		{"image", kind{values: "the name of an image", read: func(m member, _ string) { b.Image = r.text(m.value, "image") }}, "(the stack's)", "the image of the box [on AWS](aws/deploy.md#images-of-boxes), or of a `sealed` server; for `docker run`, in place of the one there, unless Docker starts it"},
		{"place", r.word(func(place string) { b.Place = place }, "auto", "lambda", "fargate"), "(as with `\"auto\"`)", "where the box runs, on AWS. `\"lambda\"`: on Lambda, if the stack has it, for at most 15 minutes at a time. `\"auto\"`: there, if the box is installed and has seldom much to do. A box that needs more runs on Fargate, such as one with an image, a profile or long calls"},
	}
}

func (r *reader) fileSettings(c *File) []setting {
	return []setting{
		{"profile", kind{values: wordsOf([]string{noProfile}), read: func(m member, _ string) {
			if r.guests = r.guests && m.value.text != noProfile; m.value.text != noProfile {
				r.fail(m.value.at, `x-dormouse: profile must be "none": each server names its own under x-dormouse.box`)
			}
		}}, "(none)", "servers without a profile are no [guests](sandbox.md#when-others-can-call)"},
		{"access", kind{values: "an object", read: func(m member, _ string) { r.whoMayCall(m, c) }}, "(none)", "sign-in, with `--access oauth`, and the tokens of an identity provider, with `--access idp`: [sign-in.md](sign-in.md). `\"boxes\": true` lets servers [call Dormouse](sandbox.md#dormouse-itself)"},
		{"connect", kind{values: "an object", read: func(m member, _ string) {
			if r.want(m.value, object, "x-dormouse.connect") {
				c.connect = r.plain(nil, r.filled(m.value))
			}
		}}, "(none)", "third parties at which servers act for their users: [third-parties.md](third-parties.md)"},
		{"audit", r.audits("", &r.audit, `"off"`, "(none)"), "", ""},
		{"groups", kind{values: "an object", read: func(m member, _ string) { c.groups = r.groups(m) }}, "(none)", "[one address](one-address.md#groups) for several servers"},
		{"limits", kind{values: "an object", read: func(m member, _ string) {
			if r.want(m.value, object, "x-dormouse.limits") {
				c.limits = r.plain(nil, m.value)
			}
		}}, "(none)", "limits of the callers of all servers: [Limits](#limits)"},
	}
}

func (r *reader) groupSettings(g *Group) []setting {
	return []setting{
		{"servers", r.names(&g.Servers), "", ""},
		{"names", r.word(func(names string) { g.Plain = names == "plain" }, "prefixed", "plain"), "", ""},
		{"tools", r.word(func(tools string) { g.Search = tools == "search" }, "all", "search"), "", ""},
	}
}

// read reads an object with settings. It returns the known keys that the author probably
// meant by unknown ones.
func (r *reader) read(n node, in section) (meant []string) {
	var known []string
	rows := map[string]setting{}
	for _, s := range in.settings {
		if rows[s.key] = s; s.kind.values != ignored {
			known = append(known, s.key)
		}
	}
	slices.Sort(known)
	r.each(n, func(m member) {
		switch s, ok := rows[m.name]; {
		case !ok:
			if near := r.unknown(m, in.name, n, known); near != "" {
				meant = append(meant, near)
			}
		case s.kind.read != nil && (in.nulls || m.value.shape != null):
			s.kind.read(m, in.label+m.name)
		}
	})
	return meant
}

func defaults(settings []setting) {
	for _, s := range settings {
		value := node{shape: number, text: s.def}
		switch {
		case s.def == "" || s.def[0] == '(':
			continue
		case s.def[0] == '"':
			value = node{shape: text, text: strings.Trim(s.def, `"`)}
		case s.def == "true" || s.def == "false":
			value = node{shape: boolean, on: s.def == "true"}
		}
		s.kind.read(member{name: s.key, value: value}, s.key)
	}
}

const (
	trueOrFalse = "true or false"
	ignored     = "ignored" // for keys that only MCP clients read, and that no complaint suggests
)

// object returns a [kind] that reads a section within another one.
func (r *reader) object(in section) kind {
	return kind{"an object", func(m member, what string) {
		if r.want(m.value, object, what) {
			r.read(m.value, in)
		}
	}, in.settings}
}

// longest limits every duration in the file. A longer duration is probably in the wrong unit.
const longest = 24 * time.Hour

// amount returns a [kind] that reads a number. The function set stores the number, or returns
// what it must be.
func (r *reader) amount(values string, set func(v float64) (want string)) kind {
	return kind{values, func(m member, what string) {
		if !r.want(m.value, number, what) {
			return
		}
		if want := set(m.value.float()); want != "" {
			r.fail(m.value.at, "%s must be %s", what, want)
		}
	}, nil}
}

// seconds returns a [kind] that reads seconds, with fractions. The argument zero permits 0, which
// means "no limit".
func (r *reader) seconds(to *time.Duration, zero bool) kind {
	return r.amount(fmt.Sprintf("seconds, at most %.0f", longest.Seconds()), func(v float64) string {
		d := time.Duration(math.Min(v, 2*longest.Seconds()) * float64(time.Second))
		if v < 0 || d > longest || d == 0 && (!zero || v != 0) {
			least := "more than 0"
			if zero {
				least = "0, for no limit,"
			}
			return fmt.Sprintf("%s and at most %.0f seconds", least, longest.Seconds())
		}
		*to = d
		return ""
	})
}

// number returns a [kind] that reads a number from least to most.
func (r *reader) number(to *float64, least, most float64) kind {
	return r.amount(fmt.Sprintf("%g to %g", least, most), func(v float64) string {
		if v < least || v > most {
			return fmt.Sprintf("at least %g and at most %g", least, most)
		}
		*to = v
		return ""
	})
}

// whole returns a [kind] that reads a whole number from least to most.
func (r *reader) whole(to *int, least, most int) kind {
	return r.amount(fmt.Sprintf("whole, %d to %d", least, most), func(v float64) string {
		if v < float64(least) || v > float64(most) || v != float64(int(v)) {
			return fmt.Sprintf("a whole number, at least %d and at most %d", least, most)
		}
		*to = int(v)
		return ""
	})
}

// flag returns a [kind] that reads true or false.
func (r *reader) flag(to *bool) kind {
	return kind{trueOrFalse, func(m member, what string) {
		if r.want(m.value, boolean, what) {
			*to = m.value.on
		}
	}, nil}
}

// word returns a [kind] that reads one of the allowed words.
func (r *reader) word(set func(string), allowed ...string) kind {
	return kind{wordsOf(allowed), func(m member, what string) {
		if m.value.shape == text && slices.Contains(allowed, m.value.text) {
			set(m.value.text)
			return
		}
		r.fail(m.value.at, "%s must be %s", what, oneOf(allowed))
	}, nil}
}

// oneOf joins words for a complaint: a, b or c.
func oneOf(words []string) string {
	list := ""
	for i, word := range words {
		switch {
		case i == 0:
		case i == len(words)-1:
			list += " or "
		default:
			list += ", "
		}
		list += strconv.Quote(word)
	}
	return list
}

// wordsOf returns words as docs/servers-file.md lists them.
func wordsOf(words []string) string {
	return "`" + strings.ReplaceAll(strings.ReplaceAll(oneOf(words), " or ", ", "), ", ", "`, `") + "`"
}

// names returns a [kind] that reads a list of texts that are not empty.
func (r *reader) names(to *[]string) kind {
	return kind{"names", func(m member, what string) {
		if !r.want(m.value, array, what) {
			return
		}
		*to = []string{}
		for _, item := range m.value.items {
			if item.shape != text || item.text == "" {
				r.fail(item.at, "%s must be a list of names", what)
				continue
			}
			*to = append(*to, item.text)
		}
	}, nil}
}

// descriptions reads an object that maps names of tools to their descriptions.
func (r *serverReader) descriptions(m member, what string) {
	if !r.want(m.value, object, what) {
		return
	}
	texts, size := map[string]string{}, 0
	r.each(m.value, func(m member) {
		if m.value.shape != text || m.name == "" || strings.HasSuffix(m.name, "*") {
			r.fail(m.at, "%s: want the name of a tool and a text, as in {\"search\": \"Searches our wiki\"}", what)
			return
		}
		texts[m.name] = m.value.text
		size += len(m.name) + len(m.value.text)
	})
	if size > storage.MaxSays {
		r.fail(m.at, "%s: the names and texts have %d bytes, more than %d; shorten them", what, size, storage.MaxSays)
	}
	r.server.Tools.Descriptions = texts
}
