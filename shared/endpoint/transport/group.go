package transport

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/aggregate"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// groupNamed returns the group with a name, with the options that the query of its address
// sets: names=plain and tools=search.
func (o *Options) groupNamed(name string, query url.Values) (Group, bool) {
	if o.Groups == nil {
		return Group{}, false
	}
	g, ok := o.Groups(name)
	g.Plain = g.Plain || query.Get("names") == "plain"
	g.Search = g.Search || query.Get("tools") == "search"
	return g, ok
}

// party is a caller, and what it has called: a server, or a group of servers.
type party struct {
	caller  sessions.Caller   // the caller; its Server is the server, or stands for the group
	group   *Group            // nil if a server was called
	members []sessions.Caller // the caller at each server of the group that the caller may use
}

func (o *Options) endpoint(p party, over storage.Transport) sessions.Endpoint {
	p.caller.Transport = over
	if p.group == nil {
		return o.Host.At(p.caller)
	}
	members := slices.Clone(p.members)
	for i := range members {
		members[i].Transport = over
	}
	return aggregate.New(aggregate.Config{
		Host: o.Host, As: p.caller, Members: members, Plain: p.group.Plain, Search: p.group.Search, Kept: o.Kept,
		Unserved: o.Unserved, Explain: func(err error) string { return problemOf(err).rpc.Message }, Look: o.KeepAlive,
	})
}

// identify returns a client's identities at the servers that it may use, by the names of the servers.
// The argument group is the address of a group, or "".
type identify func(group string, names []string) (map[string]storage.Identity, error)

// atServer returns the caller at a server. The arguments r and missing are those of [Options.server].
func (o *Options) atServer(r *http.Request, name, missing string, over storage.Transport, find identify) (party, error) {
	may, err := find("", []string{name})
	who, err := whole(may[name], err)
	if err != nil {
		return party{}, err
	}
	server, err := o.server(r, name, missing)
	if err != nil {
		return party{}, err
	}
	return party{caller: o.caller(who, server, over)}, nil
}

// atGroup returns the caller at a group.
func (o *Options) atGroup(address string, g Group, over storage.Transport, find identify) (party, error) {
	servers, names := o.served(g.Servers)
	if len(servers) == 0 {
		return party{}, refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, "there is no server at this address; the servers file has none for it")
	}
	may, err := find(address, names)
	if err != nil {
		return party{}, err
	}
	p := party{group: &g}
	for _, server := range servers {
		who, ok := may[server.Name]
		if !ok {
			continue
		}
		if who, err = whole(who, nil); err != nil {
			return party{}, err
		}
		p.members = append(p.members, o.caller(who, server, over))
	}
	if len(p.members) == 0 {
		return party{}, storage.Errorf(storage.Forbidden, "you may use no server at this address; ask its operator for access")
	}
	p.caller = p.members[0]
	p.caller.Server, p.caller.Tools = sessions.Server{Name: address}, storage.ToolFilter{}
	return p, nil
}

// served returns the servers that are served, with their names, in the order of the servers file.
// If wanted is not nil, it leaves out servers that wanted does not name.
func (o *Options) served(wanted []string) (servers []sessions.Server, names []string) {
	if o.Names == nil {
		return nil, nil
	}
	for _, name := range o.Names() {
		if server, ok := o.Servers(name); ok && (wanted == nil || slices.Contains(wanted, name)) {
			servers, names = append(servers, server), append(names, server.Name)
		}
	}
	return servers, names
}

// rules returns the members of a group that a caller may use, each with the rules for its
// tools that apply to the caller. It returns nil if the caller has called a single server.
func (p party) rules() map[string][]string {
	if p.group == nil {
		return nil
	}
	all := map[string][]string{}
	for _, c := range p.members {
		all[c.Server.Name] = c.ToolRules
	}
	return all
}
