package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/group"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// target returns where a message goes. Errors: *[wire.Error] for a name that no member has.
func (o *one) target(m wire.Message) (group.Target, error) {
	t := o.names.Find(m)
	if _, ok := o.member(t.Member); ok && !group.Short(t.Name) || t.Kind == "" {
		return t, nil
	}
	own, err := oneLists{o}.resolve(o.x.ctx(), t)
	if err == nil {
		return own, nil
	}
	return t, err
}

// resolve finds a name in the lists of the members: a short name, or one without a prefix.
func (o oneLists) resolve(ctx context.Context, t group.Target) (group.Target, error) {
	s, err := o.model()
	if err != nil {
		return t, err
	}
	if !o.group.Plain && !group.Short(t.Name) {
		return o.unprefixed(ctx, t, s)
	}
	kinds := []string{t.Kind}
	if t.Kind == wire.MethodResourcesList {
		kinds = append(kinds, wire.MethodResourceTemplatesList)
	}
	silent := map[string]string{}
	for _, kind := range kinds {
		entries, missing, err := o.entries(ctx, kind, s)
		if err != nil {
			return t, err
		}
		maps.Copy(silent, missing)
		for _, e := range entries {
			if e.Name == t.Name {
				return t.To(e.Member, e.Own), nil
			}
			if kind != t.Kind && group.Makes(e.Own, t.Name) {
				return t.To(e.Member, t.Name), nil
			}
		}
	}
	if t.Member != "" {
		return t, nil // a name of the member that only looks like a short one
	}
	return t, o.unknown(t, silent)
}

// unprefixed finds a server by the server's own name for a tool, a prompt or a resource, if no
// other server has that name. The page of an MCP App calls the tools of its server in this way.
// It wakes no server.
func (o oneLists) unprefixed(ctx context.Context, t group.Target, s session.Session) (group.Target, error) {
	entries, _, err := o.entriesFor(ctx, t.Kind, s, nil, false)
	if err != nil {
		return t, err
	}
	var all []group.Entry
	for _, e := range entries {
		if e.Own == t.Name {
			all = append(all, e)
		}
	}
	if len(all) != 1 {
		return t, o.unknown(t, nil)
	}
	return t.To(all[0].Member, all[0].Own), nil
}

func noMethod(method string) error {
	return &wire.Error{Code: wire.CodeMethodNotFound, Message: "there is no method " + clip(method) + " at the address of several servers"}
}

// subscribed returns the params of a subscriptions/listen in which each resource names its server.
// Those of no server are left as they are.
func (o oneLists) subscribed(params json.RawMessage) (json.RawMessage, error) {
	path := []string{"notifications", "resourceSubscriptions"}
	uris := wire.Lookup(params, path...)
	if !o.group.Plain || len(uris) == 0 || uris[0] != '[' {
		return params, nil
	}
	var all [][]byte
	var failed error
	wire.Elements(uris, func(raw json.RawMessage) bool {
		uri, _ := wire.String(raw)
		t := group.Target{Kind: wire.MethodResourcesList, Name: uri}
		var none *wire.Error
		switch of, err := o.resolve(o.x.ctx(), t); {
		case err == nil:
			raw = wire.AppendString(nil, group.WrapURI(of.Member, of.Own()))
		case !errors.As(err, &none):
			failed = err
		}
		all = append(all, raw)
		return failed == nil
	})
	params, _ = wire.Replace(params, slices.Concat([]byte{'['}, bytes.Join(all, []byte{','}), []byte{']'}), path...)
	return params, failed
}

// owner returns the member that a request with a method of an extension goes to, if the request
// names none: the only one that declares the extension.
func (o oneLists) owner(m wire.Message) (member string, err error) {
	s, err := o.model()
	if err != nil {
		return "", err
	}
	known, err := o.x.opts.Host.Greetings(o.x.ctx(), o.members, s.Version)
	if err != nil {
		return "", err
	}
	switch owners := group.Owners(m.Method, o.lists(known)...); {
	case len(owners) == 1:
		return owners[0], nil
	case len(owners) == 0:
		return "", noMethod(m.Method)
	default:
		code := wire.CodeMethodNotFound
		if wire.Lookup(m.Params, "uri") != nil {
			code = wire.CodeInvalidParams
		}
		return "", &wire.Error{Code: code, Message: "the request names none of the servers that may have the method " + clip(m.Method) + ": " + strings.Join(owners, ", ") + "; send it to the address of one of them, such as /" + owners[0] + "/mcp"}
	}
}

// unknown returns the error for a name of no member. silent has the members whose lists are not
// known, with the reason of each: the name may be one of theirs.
func (o oneLists) unknown(t group.Target, silent map[string]string) error {
	what := map[string]string{wire.MethodToolsList: "tool", wire.MethodPromptsList: "prompt"}[t.Kind]
	if what == "" {
		what = "resource"
	}
	server := o.names.Begin(t.Name)
	if of, _, ok := group.UnwrapURI(t.Name); ok {
		server = of
	}
	others := ""
	for i, member := range slices.Sorted(maps.Keys(silent)) {
		if i == 0 {
			others = "; servers that cannot be asked for theirs:"
		}
		others += " " + member + " (" + silent[member] + ")"
	}
	code := wire.CodeInvalidParams
	if what == "resource" && o.session != "" {
		code = wire.CodeResourceNotFound
	}
	fault := &wire.Error{Code: code, Message: "there is no " + what + " " + clip(t.Name) + " here" + o.meant(t) + others}
	if o.x.opts.Unserved != nil && server != "" {
		if reason := o.x.opts.Unserved(server); reason != "" {
			fault.Message = "server \"" + server + "\" is not served: " + reason
		}
	}
	if what == "resource" {
		fault.Data = map[string]string{"uri": t.Name} // SEP-2164
	}
	return fault
}
