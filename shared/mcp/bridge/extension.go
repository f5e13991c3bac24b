package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Extensions of MCP pass unchanged between client and server, except for tasks, which Dormouse
// serves itself. A legacy server needs a process for each kind of client ([Request.Kind]), because
// it learns the client's extensions only once, in initialize.

// beyond returns what a client's capabilities declare besides those of MCP itself:
// extensions without tasks, experimental capabilities, and members that no version has.
func beyond(capabilities json.RawMessage) object {
	o, _ := objectOf(capabilities)
	o = withoutTasks(o.without("roots", "sampling", "elicitation", "tasks"))
	for _, key := range []string{"extensions", "experimental"} {
		if members, ok := objectOf(o.get(key)); ok && len(members) == 0 {
			o = o.without(key)
		}
	}
	return o
}

// withoutTasks returns capabilities without the extension that Dormouse serves itself.
func withoutTasks(capabilities object) object {
	extensions, ok := objectOf(capabilities.get("extensions"))
	if !ok || extensions.get(Tasks) == nil {
		return capabilities
	}
	if extensions = extensions.without(Tasks); len(extensions) == 0 {
		return capabilities.without("extensions")
	}
	return capabilities.with("extensions", extensions.encode())
}

// Introduce returns the params of initialize for a legacy server: what the client has said, without tasks. The
// argument legacy says that the client is legacy, so that all else passes as it is.
func Introduce(said json.RawMessage, legacy bool) json.RawMessage {
	l := ReadLegacy(said)
	o, _ := objectOf(said)
	if !legacy {
		o, _ = objectOf(Superset(l.client))
		o = o.without("_meta")
	}
	o = o.with("protocolVersion", text(wire.Negotiate(l.version)))
	return o.with("capabilities", withoutTasks(l.capabilities.without("tasks")).encode()).encode()
}

// Unheard returns a result of server/discover or initialize without the capabilities tasks and
// listChanged, for a server to which no stream is open between messages: their notifications would not
// come. Unless the argument is true, it leaves out subscribe too.
func Unheard(result json.RawMessage, subscribe bool) json.RawMessage {
	capabilities, ok := objectOf(wire.Lookup(result, "capabilities"))
	if !ok {
		return result
	}
	for _, kind := range []string{"tools", "prompts", "resources"} {
		if of, ok := objectOf(capabilities.get(kind)); ok {
			if of = of.without("listChanged"); !subscribe {
				of = of.without("subscribe")
			}
			capabilities = capabilities.with(kind, of.encode())
		}
	}
	result, _ = wire.Replace(result, capabilities.without("tasks").encode(), "capabilities")
	return result
}

// Extended reports whether the client declares anything besides the capabilities of MCP
// itself and tasks. Only an Extended client gets the notifications of extensions.
func (r Request) Extended() bool { return len(beyond(r.Capabilities)) > 0 }

// Kind is a hash of what the client declares besides the capabilities of MCP itself and tasks, such as
// extensions; "" for nothing.
func (r Request) Kind() string {
	o := beyond(r.Capabilities)
	if len(o) == 0 {
		return ""
	}
	sum := sha256.Sum256(canonical(o.encode()))
	return hex.EncodeToString(sum[:12])
}

// Init returns the params of initialize for a server that is started for the request: the
// [Superset], with the extensions of the client.
func (r Request) Init() json.RawMessage {
	init := Superset(r.Client)
	o := beyond(r.Capabilities)
	if len(o) == 0 {
		return init
	}
	all, _ := objectOf(wire.Lookup(init, "capabilities"))
	init, _ = wire.Replace(init, append(all, o...).encode(), "capabilities")
	return init
}

// WithoutQuestions returns the request without the capabilities to answer questions.
func (r Request) WithoutQuestions() Request {
	r.Capabilities = beyond(r.Capabilities).encode()
	return r
}
