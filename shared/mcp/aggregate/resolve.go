package aggregate

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
)

// target returns the Target of a message. It looks in the members' lists for a name that does not tell
// its member. Errors: *[wire.Error] for a name that no member has.
func (g *Group) target(ctx context.Context, id storage.ID, m wire.Message) (group.Target, error) {
	t := g.names.Find(m)
	if _, ok := g.member(t.Member); ok && !group.Short(t.Name) || t.Kind == "" {
		return t, nil
	}
	own, err := g.resolve(ctx, id, t)
	if err == nil {
		return own, nil
	}
	return t, err
}

// resolve looks in the members' lists for a name without a prefix, or for a shortened name ([group.Short]).
func (g *Group) resolve(ctx context.Context, id storage.ID, t group.Target) (group.Target, error) {
	s, err := g.model(ctx, id)
	if err != nil {
		return t, err
	}
	if !g.Plain && !group.Short(t.Name) {
		return g.unprefixed(ctx, id, t, s)
	}
	x, own, ok, err := g.lookup(ctx, t.Kind, s, func(x *index) (group.Entry, bool) { return x.entry(x.names, t.Name) })
	if err != nil {
		return t, err
	}
	if ok {
		return t.To(own.Member, own.Own), nil
	}
	silent := x.silent
	if t.Kind == wire.MethodResourcesList {
		templates, own, ok, err := g.lookup(ctx, wire.MethodResourceTemplatesList, s, func(x *index) (group.Entry, bool) {
			if e, ok := x.entry(x.names, t.Name); ok {
				return e, true
			}
			i := slices.IndexFunc(x.entries, func(e group.Entry) bool { return group.Makes(e.Own, t.Name) })
			if i < 0 {
				return group.Entry{}, false
			}
			return group.Entry{Member: x.entries[i].Member, Own: t.Name}, true
		})
		if err != nil {
			return t, err
		}
		if ok {
			return t.To(own.Member, own.Own), nil
		}
		silent = maps.Clone(silent)
		maps.Copy(silent, templates.silent)
	}
	if t.Member != "" {
		return t, nil // the name has a prefix after all; its end only looks like that of a shortened name
	}
	return t, g.unknown(id, t, silent)
}

// lookup returns the index of a kind, and the entry that the function find finds in it.
func (g *Group) lookup(ctx context.Context, kind string, s storage.Session, find func(*index) (group.Entry, bool)) (x *index, e group.Entry, ok bool, err error) {
	x, err = g.index(ctx, kind, s, true, func(x *index) bool { _, ok := find(x); return ok })
	if err == nil {
		e, ok = find(x)
	}
	return x, e, ok, err
}

// unprefixed finds the only member that has a tool, prompt or resource of this name. It wakes no
// server. Pages of MCP Apps use names without a prefix.
func (g *Group) unprefixed(ctx context.Context, id storage.ID, t group.Target, s storage.Session) (group.Target, error) {
	x, err := g.index(ctx, t.Kind, s, false, func(x *index) bool { _, some := x.owned[t.Name]; return some })
	if err != nil {
		return t, err
	}
	if own, ok := x.entry(x.owned, t.Name); ok {
		return t.To(own.Member, own.Own), nil
	}
	return t, g.unknown(id, t, nil)
}

// subscribed returns the params of a subscriptions/listen in which the URI of each resource names the
// member that has the resource. A URI that no member has stays as it is.
func (g *Group) subscribed(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	path := []string{"notifications", "resourceSubscriptions"}
	uris := wire.Lookup(params, path...)
	if !g.Plain || len(uris) == 0 || uris[0] != '[' {
		return params, nil
	}
	var all []json.RawMessage
	for raw := range wire.Elements(uris) {
		uri, _ := wire.String(raw)
		of, err := g.resolve(ctx, "", group.Target{Kind: wire.MethodResourcesList, Name: uri})
		if err == nil {
			raw = wire.AppendString(nil, group.WrapURI(of.Member, of.Own()))
		} else if _, unknown := errors.AsType[*wire.Error](err); !unknown {
			return params, err
		}
		all = append(all, raw)
	}
	params, _ = wire.Replace(params, wire.Array(all), path...)
	return params, nil
}

// owner returns the member for a request that names no member and has a method of an extension.
func (g *Group) owner(ctx context.Context, id storage.ID, m wire.Message) (member string, err error) {
	s, err := g.model(ctx, id)
	if err != nil {
		return "", err
	}
	client := declared(s.Init)
	if id == "" { // a modern client has no session
		client = declaredIn(m)
	}
	known, err := g.greetings(ctx, s.Version, client)
	if err != nil {
		return "", err
	}
	switch owners := group.Owners(m.Method, g.lists(known)...); {
	case len(owners) == 1:
		return owners[0], nil
	case len(owners) == 0:
		return "", noMethod(m.Method)
	default:
		code := wire.CodeMethodNotFound
		if wire.Lookup(m.Params, "uri") != nil {
			code = wire.CodeInvalidParams
		}
		return "", &wire.Error{Code: code, Message: "the request names none of the servers that may have the method " + wire.Clip(m.Method) + ": " + strings.Join(owners, ", ") + "; send it to the address of one of them, such as /" + owners[0] + "/mcp"}
	}
}

// unknown returns the error for a name that no index has. silent has the members whose lists are not
// known, with the reason for each: one of them may have the name.
func (g *Group) unknown(id storage.ID, t group.Target, silent map[string]string) error {
	what := map[string]string{wire.MethodToolsList: "tool", wire.MethodPromptsList: "prompt"}[t.Kind]
	if what == "" {
		what = "resource"
	}
	server := g.names.Begin(t.Name)
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
	if what == "resource" && id != "" {
		code = wire.CodeResourceNotFound
	}
	fault := &wire.Error{Code: code, Message: "there is no " + what + " " + wire.Clip(t.Name) + " here" + others}
	if g.Unserved != nil && server != "" {
		if reason := g.Unserved(server); reason != "" {
			fault.Message = "server \"" + server + "\" is not served: " + reason
		}
	}
	if what == "resource" {
		fault.Data = map[string]string{"uri": t.Name} // as SEP-2164 wants
	}
	return fault
}
