package front

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/group"
	"github.com/dormouse-mcp/dormouse/shared/nearest"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// mostNamed is how many servers an error names.
const mostNamed = 20

// unknown returns the text of the 404 for a server that is not there. It names the
// servers that the caller may use. For a caller that may use none, it returns the text
// otherwise.
func (o Options) unknown(r *http.Request, name, otherwise string) string {
	names := o.usable(r)
	if len(names) == 0 {
		return otherwise
	}
	text := "there is no server " + clip(name)
	if near := nearest.Of(name, names, 1+len(name)/3); near != "" {
		text += " (did you mean " + near + "?)"
	}
	more := ""
	if n := len(names) - mostNamed; n > 0 {
		names, more = names[:mostNamed], fmt.Sprintf(" and %d more", n)
	}
	return text + "; there are " + strings.Join(names, ", ") + more
}

// usable returns the names of the servers that a caller may use, in the order of the
// servers file.
func (o Options) usable(r *http.Request) []string {
	var names []string
	if o.Names == nil {
		return nil
	}
	for _, name := range o.Names() {
		if _, err := whole(o.Auth.Authenticate(r, name)); err == nil {
			names = append(names, name)
		}
	}
	return names
}

const (
	mostMeant    = 3   // how many names an error proposes
	longestMeant = 128 // bytes of a name that somebody may have mistyped
)

// meant proposes the tools or prompts that a name of no member may stand for: those of
// members that have it without a prefix, or else the nearest. It returns "" for none. Only
// the records count, so an error wakes no server.
func (o oneLists) meant(t group.Target) string {
	if t.Kind != wire.MethodToolsList && t.Kind != wire.MethodPromptsList || t.Name == "" || len(t.Name) > longestMeant {
		return ""
	}
	s, err := o.model()
	if err != nil {
		return ""
	}
	known, err := o.x.opts.Host.Lists(o.x.ctx(), s, o.members, t.Kind)
	if err != nil {
		return ""
	}
	var names, meant []string
	for _, e := range o.names.Merge(t.Kind, o.group.Plain, o.lists(known)...) {
		if names = append(names, e.Name); e.Own == t.Name {
			meant = append(meant, e.Name)
		}
	}
	if near := nearest.Of(t.Name, names, 1+len(t.Name)/3); near != "" && len(meant) == 0 {
		meant = []string{near}
	}
	if len(meant) == 0 {
		return ""
	}
	return " (did you mean " + strings.Join(meant[:min(len(meant), mostMeant)], " or ") + "?)"
}
