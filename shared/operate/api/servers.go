package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/override"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const (
	noServersFile missing = "no servers file is read here, because dormouse run is not up; start it, or use --url"
	noReload      missing = "the servers file is not read again here; that of a stack changes by dormouse push"
	noPush        missing = "no servers file is kept here: dormouse run reads its own whenever it changes, and dormouse push is for stacks"
)

// mostLooked limits the sessions whose newest message the list of servers looks up. For further sessions
// it takes the time in their record, which may be days older.
const mostLooked = 200

// mostCounted is how many sessions the list of servers counts, so that a machine with many
// sessions answers at once. With more sessions, each count is a lower bound.
const mostCounted = 1000

func (x *exchange) servers() (any, error) {
	file := x.h.Servers()
	status, err := x.status()
	if err != nil {
		return nil, err
	}
	list := summary(file, status)
	list = slices.DeleteFunc(list, func(s Server) bool { return !x.caller.may(x.caller.Tenant, s.Name) })
	seen, err := x.addSessions(list)
	if err != nil {
		return nil, err
	}
	if err := x.addCalls(list); err != nil {
		return nil, err
	}
	tenants := []string{x.caller.Tenant}
	if x.caller.Tenant == "" {
		if err := addKeys(x.r.Context(), x.h.Store, seen); err != nil {
			return nil, err
		}
		tenants = slices.Sorted(maps.Keys(seen))
	}
	for i := range list {
		if l := &list[i]; !x.caller.reads() && l.State != NotServed && l.State != Off {
			l.Why = withoutOutput(l.Why)
		}
		s, ok := file.Server(list[i].Name)
		if !ok || s.Disabled {
			continue
		}
		list[i].Path = "/" + s.Name + "/mcp"
		if list[i].Held, err = x.h.heldOf(x.r.Context(), s); errors.Is(err, storage.Invalid) {
			list[i].Held, list[i].State, list[i].Why = 0, Failed, err.Error() // its lock
			continue
		} else if err != nil {
			return nil, err
		}
		for _, t := range tenants {
			tools, _, err := x.h.Known(x.r.Context(), t, s)
			if err != nil {
				return nil, err
			}
			if n := len(tools); tools != nil && (list[i].Tools == nil || *list[i].Tools < n) {
				list[i].Tools = &n
			}
		}
		if err := x.addStart(&list[i], s, tenants); err != nil {
			return nil, err
		}
	}
	answer := map[string]any{"servers": list}
	if x.h.Notes != nil && x.caller.seesAll() {
		if notes := x.h.Notes(); len(notes) > 0 {
			answer["notes"] = notes
		}
	}
	return answer, nil
}

// addStart sets Start of a server of which nothing runs: whether it has failed to start, has
// never started, or has no program.
func (x *exchange) addStart(l *Server, s serversfile.Server, tenants []string) error {
	if l.State == Failed && l.Boxes == 0 {
		l.Start = FailedLast
	}
	if l.State != Asleep || l.Tools != nil || s.InPlace() || !s.Record {
		return nil
	}
	if x.h.Missing != nil {
		if err := x.h.Missing(s); err != nil {
			l.Start, l.Why = ProgramMissing, err.Error()
			return nil
		}
	}
	for _, t := range tenants {
		parts, err := x.h.Store.ListHandshakes(x.r.Context(), storage.RecordFor(t, s.RecordDigest()), "")
		if err != nil || len(parts) > 0 {
			return err
		}
	}
	if l.LastMessage == nil { // a server with messages has started, even if dormouse stop made the store forget its handshakes
		l.Start = NeverStarted
	}
	return nil
}

// reload reads the servers file now, and forgets stored answers of servers. The caller must see all
// servers, because the response names them.
func (x *exchange) reload() (any, error) {
	if !x.caller.seesAll() {
		return nil, storage.Errorf(storage.Forbidden, "reload is about all servers, and this key is for some of them")
	}
	var order Reload
	if err := x.body(&order); err != nil {
		return nil, err
	}
	taken := x.h.Reload()
	if taken.Error != "" {
		return taken, nil
	}
	return taken, forget(x, func(server string) bool { return order.Forget == nil || slices.Contains(order.Forget, server) })
}

const noPrepare missing = "servers are not prepared here; that of a stack is installed with its image"

// prepare installs a server, and starts it once.
func (x *exchange) prepare() (any, error) {
	s, err := x.server()
	if err != nil {
		return nil, err
	}
	return x.h.Prepare(x.r.Context(), s.Name)
}

// push puts a servers file into the store, from which Lambda functions take it. The caller must be the
// owner of the machine or stack, because the file decides what runs for all tenants.
func (x *exchange) push() (any, error) {
	if !x.caller.owns() {
		return nil, storage.Errorf(storage.Forbidden, "the servers file is that of all tenants; it takes an operator's key for all servers of the tenant %s", ownTenant)
	}
	var asked Push
	if err := x.body(&asked); err != nil {
		return nil, err
	}
	f := override.File{Name: asked.Name, Text: []byte(asked.Text), By: x.caller.Principal, At: time.Now().UTC()}
	if asked.Withdraw {
		f.Text = nil
	}
	if asked.Withdraw == (asked.Text != "") {
		return nil, storage.Errorf(storage.Invalid, "a push has a text, or withdraw")
	}
	if !asked.Withdraw {
		if err := f.Check(); err != nil {
			return nil, err
		}
	}
	f, err := override.Save(x.r.Context(), x.h.Store, f)
	return Pushed{Version: f.Version}, err
}

// summary returns a line for each server of the file, in its order, the rejected ones
// last.
func summary(file *serversfile.File, status Status) []Server {
	list := []Server{}
	for _, name := range file.Names() {
		s, _ := file.Server(name)
		line := Server{Name: name, State: Asleep}
		if s.Remote.URL != "" {
			line.State = Remote
		}
		if s.Disabled {
			line.State, line.Why = Off, file.Reason(name)
		}
		list = append(list, line)
	}
	for _, r := range file.Rejected() {
		list = append(list, Server{Name: r.Name, State: NotServed, Why: r.Reason()})
	}
	for i := range list {
		if l := &list[i]; l.State == Asleep {
			l.State, l.Boxes, l.Processes, l.Why = StateOf(l.Name, status)
		}
	}
	return list
}

// StateOf returns the state of a served server, how many of its boxes are up, and how many processes run
// in them. The state is that of a ready process, else of a starting one, else of one that failed. The
// result why is the reason if the process that ended last failed, "" if a process is ready. A box that sleeps is not up,
// although its runner may stay for a moment.
func StateOf(server string, status Status) (state string, boxes, running int, why string) {
	starting := false
	for _, b := range status.Boxes {
		if b.Server == server && b.State != Asleep {
			boxes++
			starting = starting || b.State == string(storage.Starting)
		}
	}
	if boxes == 0 {
		if why := status.Failed[server]; why != "" {
			return Failed, 0, 0, why
		}
		return Asleep, 0, 0, ""
	}
	var last Process // the newest process that has ended
	ready, tries, known := false, false, false
	for _, p := range status.Processes {
		if p.Server != server {
			continue
		}
		known = true
		switch p.State {
		case "ready":
			ready = true
			running++
		case "started":
			tries = true
			running++
		case "staging":
			tries = true
		case "exited", "stopped":
			if p.Since.After(last.Since) {
				last = p
			}
		}
	}
	tries = tries || starting || !known && status.Processes != nil
	if last.State == "exited" {
		why = last.Why()
	}
	switch {
	case ready:
		return Awake, boxes, running, ""
	case tries: // with the reason of an earlier failure, if any
		return Starting, boxes, running, why
	case last.State == "exited":
		return Failed, boxes, 0, why
	}
	return Awake, boxes, 0, "" // all processes in the box have ended normally, or are not known
}

// Why says why a process failed, in one line, without the name of its server; "" if it has
// not.
func (p Process) Why() string {
	first, _, _ := strings.Cut(p.Detail, "\n")
	return strings.TrimPrefix(first, fmt.Sprintf("server %q: ", p.Server))
}

// addSessions sets how many sessions each server has, and when it got its newest message. It returns
// the tenants of these sessions.
func (x *exchange) addSessions(list []Server) (tenants map[string]bool, err error) {
	tenants = map[string]bool{}
	at := map[string]*Server{}
	for i := range list {
		at[list[i].Name] = &list[i]
	}
	looked, counted := 0, 0
	for s, err := range x.each("") {
		if err != nil {
			return nil, err
		}
		if counted++; counted > mostCounted {
			for i := range list {
				list[i].MoreSessions = true
			}
			break
		}
		tenants[s.Tenant] = true
		server := at[s.Server]
		if server == nil || s.State == storage.Ended {
			continue
		}
		server.Sessions++
		last := s.Used
		if looked++; looked <= mostLooked {
			if last, err = lastMessage(x, s); err != nil {
				return nil, err
			}
		}
		if last = last.UTC(); server.LastMessage == nil || server.LastMessage.Before(last) {
			server.LastMessage = &last
		}
	}
	return tenants, nil
}

// tenants returns the tenants that the caller sees and that may have records.
func (x *exchange) tenants() ([]string, error) {
	if x.caller.Tenant != "" {
		return []string{x.caller.Tenant}, nil
	}
	return Tenants(x.r.Context(), x.h.Store, math.MaxInt)
}

// Tenants returns, in order, the tenants that have keys or sessions, and the tenant of callers
// without a key. It looks at the given number of sessions at most.
func Tenants(ctx context.Context, store storage.Store, sessions int) ([]string, error) {
	seen := map[string]bool{}
	if err := addKeys(ctx, store, seen); err != nil {
		return nil, err
	}
	for s, err := range storage.AllSessions(ctx, store, "", "") {
		if err != nil {
			return nil, err
		}
		seen[s.Tenant] = true
		if sessions--; sessions <= 0 {
			break
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// addKeys adds the tenants that have keys, and the tenant of callers without a key.
func addKeys(ctx context.Context, store storage.Store, tenants map[string]bool) error {
	tenants[apikey.LocalTenant] = true
	keys, err := apikey.List(ctx, store, "")
	for _, k := range keys {
		tenants[k.Tenant] = true
	}
	return err
}

// Known returns the tools that a tenant's server offers to a client with few capabilities, and when
// the server listed them. It asks native and remote servers. For a server in a box it reads a
// stored list and starts nothing; tools is nil if there is no list. The caller owns tools.
func (o Options) Known(ctx context.Context, tenant string, s serversfile.Server) (tools []json.RawMessage, taken time.Time, err error) {
	if !s.InPlace() {
		tools, taken, err = recorded(ctx, o.Store, tenant, s)
	} else if o.NativeTools != nil {
		if tools, err = o.NativeTools(ctx, tenant, s.Name); err != nil {
			return nil, taken, nil // the server fails for its clients too, and the log says why
		}
		taken = time.Now()
	}
	if err == nil {
		tools, err = o.shown(ctx, s, tools)
	}
	offered := s.Tools.Filter()
	nameOf := func(tool json.RawMessage) string {
		name, _ := wire.String(wire.Lookup(tool, "name"))
		return name
	}
	tools = slices.DeleteFunc(tools, func(tool json.RawMessage) bool { return !offered.Allows(nameOf(tool)) })
	for i, tool := range tools {
		if text, says := offered.Says[nameOf(tool)]; says {
			tools[i] = wire.WithDescription(tool, text)
		}
	}
	return tools, taken, err
}

// recorded returns a list of tools that the store keeps for a tenant's server, and when the server
// gave it. tools is nil if there is none. Of several lists, recorded chooses the one for clients
// with the fewest capabilities. The caller owns tools.
func recorded(ctx context.Context, store storage.Handshakes, tenant string, s serversfile.Server) (tools []json.RawMessage, taken time.Time, err error) {
	parts, err := store.ListHandshakes(ctx, storage.RecordFor(tenant, s.RecordDigest()), wire.MethodToolsList+" ")
	if err != nil {
		return nil, taken, err
	}
	least := math.MaxInt
	for _, p := range parts {
		list := wire.Lookup(p.Result, "list", "tools")
		var all []json.RawMessage
		can := abilities(p.Version)
		if (can < least || can == least && p.Taken.After(taken)) && json.Unmarshal(list, &all) == nil && all != nil {
			tools, taken, least = all, p.Taken, can
		}
	}
	return tools, taken, nil
}

// abilities returns for how many client capabilities a list was given, by the name of the list in the
// store: "METHOD VERSION CAPABILITY,CAPABILITY CALLER", see package sessions.
func abilities(list string) int {
	fields := strings.Split(list, " ")
	if len(fields) < 3 || fields[2] == "" {
		return 0
	}
	return 1 + strings.Count(fields[2], ",")
}

// server returns the server in the path, if the caller sees it.
func (x *exchange) server() (serversfile.Server, error) {
	if x.h.Servers == nil {
		return serversfile.Server{}, noServersFile
	}
	file, name := x.h.Servers(), x.r.PathValue("server")
	visible := func(n string) bool { return x.caller.may(x.caller.Tenant, n) }
	if s, ok := file.Server(name); ok && visible(name) {
		return s, nil
	}
	if why := file.Reason(name); why != "" && visible(name) {
		return serversfile.Server{}, storage.Errorf(storage.Unavailable, "server %q is not served: %s", name, why)
	}
	names := slices.DeleteFunc(file.Names(), func(n string) bool { return !visible(n) })
	return serversfile.Server{}, storage.Errorf(storage.NotFound, "no server %s: %s", name, serversfile.Instead(name, names))
}

func (x *exchange) tools() (any, error) {
	s, err := x.server()
	if err != nil {
		return nil, err
	}
	tenants, err := x.tenants()
	if err != nil {
		return nil, err
	}
	found := Tools{Server: s.Name}
	for _, t := range tenants {
		tools, taken, err := x.h.Known(x.r.Context(), t, s)
		if err != nil {
			return nil, err
		}
		if tools != nil && taken.After(found.Taken) {
			found.Tools, found.Taken = tools, taken.UTC()
		}
	}
	if found.Tools == nil {
		return nil, storage.Errorf(storage.NotFound, "nobody has asked %s for its tools yet, or its configuration has changed since", s.Name)
	}
	return found, nil
}
