package serversfile

import (
	"maps"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Audit says whose keys may read the arguments and results of calls (x-dormouse.audit). With the zero
// value, these are not kept.
type Audit struct {
	Bodies storage.Role `json:"bodies,omitempty"` // "": arguments and results are not kept
	Redact []string     `json:"redact,omitempty"` // names of JSON members whose values are hidden; case does not matter
}

// audits returns a [kind] that reads an [Audit]. Complaints begin with what. The defaults are bodies and
// redact, in the form of setting.def.
func (r *reader) audits(what string, to *Audit, bodies, redact string) kind {
	role := func(name string) {
		if to.Bodies = storage.Role(name); name == "off" {
			to.Bodies = ""
		}
	}
	return r.object(section{name: what + "x-dormouse.audit", label: what + "audit.", settings: []setting{
		{"bodies", r.word(role, "off", string(storage.RoleAuditor), string(storage.RoleOperator)), bodies, "keeps arguments and results of calls, sealed, for keys of this role: [audit.md](audit.md)"},
		{"redact", r.names(&to.Redact), redact, "members of arguments and results whose values are hidden there, such as `\"password\"`"},
	}})
}

// Secrets returns what must not be read in the bodies of calls: the values of Env by their
// names, and URL and headers of a remote server. known is false if a value comes from elsewhere:
// it is a secret of AWS, of a principal at a third party, or the output of a command.
func (s Server) Secrets() (values map[string]string, known bool) {
	values = map[string]string{"url ": s.Remote.URL} // no variable has a name with a space
	maps.Copy(values, s.Env)
	for name, value := range s.Remote.Headers {
		values["header "+name] = value
	}
	return values, len(s.References())+len(s.Principal())+len(s.Commands)+len(s.Remote.Commands) == 0
}
