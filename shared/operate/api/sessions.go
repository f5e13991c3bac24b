package api

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Lengths of a page of sessions or calls.
const (
	onAPage  = 100 // by default
	mostPage = 1000
)

// each returns the sessions that the caller sees, in order from the one after the given id. An error
// is the last element.
func (x *exchange) each(after storage.ID) iter.Seq2[storage.Session, error] {
	return func(yield func(storage.Session, error) bool) {
		for s, err := range storage.AllSessions(x.r.Context(), x.h.Store, x.caller.Tenant, after) {
			if (err != nil || x.caller.may(s.Tenant, s.Server)) && !yield(s, err) {
				return
			}
		}
	}
}

// lastMessage returns the time of the newest request of a session. The time in the session record
// may be older.
func lastMessage(x *exchange, s storage.Session) (time.Time, error) {
	newest, err := x.h.Store.Newest(x.r.Context(), s.ID)
	if err != nil {
		return time.Time{}, err
	}
	if t := newest.Time(); t.After(s.Used) {
		return t, nil
	}
	return s.Used, nil
}

func (x *exchange) sessions() (any, error) {
	query := x.r.URL.Query()
	limit, err := limitOf(query.Get("limit"))
	if err != nil {
		return nil, err
	}
	answer := Sessions{Sessions: []Session{}}
	server, who := query.Get("server"), query.Get("principal")
	for s, err := range x.each(storage.ID(query.Get("after"))) {
		if err != nil {
			return nil, err
		}
		if server != "" && server != s.Server || who != "" && who != s.Principal {
			continue
		}
		if len(answer.Sessions) == limit {
			answer.Next = answer.Sessions[limit-1].ID
			break
		}
		last, err := lastMessage(x, s)
		if err != nil {
			return nil, err
		}
		answer.Sessions = append(answer.Sessions, sessionOf(s, last))
	}
	return answer, nil
}

func sessionOf(s storage.Session, last time.Time) Session {
	return Session{
		ID: string(s.ID), Server: s.Server, Tenant: s.Tenant, Principal: s.Principal, State: string(s.State), Quit: string(s.Quit),
		Client: clientOf(s), Transport: string(s.Transport), Version: s.Version,
		Created: s.Created.UTC(), LastMessage: last.UTC(), Expires: s.Expires.UTC(),
	}
}

func clientOf(s storage.Session) string { return wire.ClientName(s.Init) }

// session returns the session that the path names by its id, or by the beginning of its id if no
// other id begins so.
func (x *exchange) session() (storage.Session, error) {
	name := x.r.PathValue("session")
	s, _, err := x.h.Store.Load(x.r.Context(), storage.ID(name), "")
	if err == nil && x.caller.may(s.Tenant, s.Server) {
		return s, nil
	}
	if err != nil && !errors.Is(err, storage.NotFound) {
		return s, err
	}
	var found []storage.Session
	for s, err := range x.each(storage.ID(name)) { // ids that begin with name come first
		if err != nil {
			return s, err
		}
		if len(found) > 1 || !strings.HasPrefix(string(s.ID), name) {
			break
		}
		found = append(found, s)
	}
	switch {
	case len(found) == 0:
		return s, storage.Errorf(storage.NotFound, "no session %s: it has ended or expired; dormouse sessions lists those there are", name)
	case len(found) > 1:
		return s, storage.Errorf(storage.Invalid, "several sessions begin with %s: name more of the id", name)
	}
	return found[0], nil
}

const noHost missing = "sessions are not served here, because dormouse run is not up; start it, or use --url"

func (x *exchange) endSession() (any, error) {
	s, err := x.session()
	if err != nil {
		return nil, err
	}
	if err := x.h.End(x.r.Context(), s.ID); err != nil {
		return nil, err
	}
	after, _, err := x.h.Store.Load(x.r.Context(), s.ID, "")
	if err != nil {
		return nil, err
	}
	return sessionOf(after, after.Used), nil
}

// giveSession hands a session over. The session's process is stopped, because it may have secrets
// of the earlier principal.
func (x *exchange) giveSession() (any, error) {
	var to Give
	if err := x.body(&to); err != nil {
		return nil, err
	}
	s, err := x.session()
	if err != nil {
		return nil, err
	}
	if s.Group != "" {
		return nil, storage.Errorf(storage.Invalid, "the session belongs to session %s of several servers: give that one", s.Group)
	}
	given, failed := x.h.Give(x.r.Context(), s.ID, to.Principal)
	for _, g := range given { // also after an error: these sessions belong to the new principal
		// The caller may disconnect before all boxes are told, so do not use its context.
		_, err := x.h.Halt(context.WithoutCancel(x.r.Context()), g.Box(), frame.Halt{Session: g.ID, By: x.caller.Principal})
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		return nil, failed
	}
	return sessionOf(given[0], given[0].Used), nil
}

// grace is the time that calls in flight get to end before their processes are stopped.
const grace = 30 * time.Second

// stop stops the processes of boxes, or of one session.
func (x *exchange) stop(order Stop, boxes []storage.BoxID, of storage.ID) (told Stopped, err error) {
	h := frame.Halt{Session: of, By: x.caller.Principal, In: grace.Milliseconds()}
	if order.Now {
		h.In = 0
	}
	told.Boxes = []string{}
	var errs []error
	for _, b := range boxes {
		// The caller may disconnect before all boxes are told, so do not use its context.
		up, err := x.h.Halt(context.WithoutCancel(x.r.Context()), b, h)
		if up {
			told.Boxes = append(told.Boxes, string(b))
		}
		errs = append(errs, err)
	}
	return told, errors.Join(errs...)
}

func (x *exchange) stopSession() (any, error) {
	s, err := x.session()
	if err != nil {
		return nil, err
	}
	var order Stop
	if err := x.body(&order); err != nil {
		return nil, err
	}
	told, err := x.stop(order, []storage.BoxID{s.Box()}, s.ID)
	return x.h.sayNative(told, s.Server), err
}

// sayNative sets Why for a native or remote server, of which nothing can be stopped.
func (o Options) sayNative(told Stopped, server string) Stopped {
	if o.Servers == nil {
		return told
	}
	switch s, _ := o.Servers().Server(server); {
	case s.Remote.URL != "":
		told.Why = server + " is a remote server: Dormouse runs nothing for it."
	case s.Native != "":
		told.Why = server + " is a native server: it runs inside Dormouse, and only while it answers a message."
	default:
		return told
	}
	told.Why += " Its calls in flight go on until they end or reach tool_timeout_sec. To take it out of service: dormouse disable " + server
	return told
}

func (x *exchange) stopServer() (any, error) {
	s, err := x.server()
	if err != nil {
		return nil, err
	}
	told, err := x.stopBoxes(func(server string) bool { return server == s.Name })
	return x.h.sayNative(told, s.Name), err
}

func (x *exchange) stopAll() (any, error) {
	return x.stopBoxes(func(string) bool { return true })
}

// stopBoxes stops the boxes of servers that the caller sees. Unless the request sets Keep, it also
// forgets the stored answers of these servers to initialize and to lists.
func (x *exchange) stopBoxes(match func(server string) bool) (told Stopped, err error) {
	var order Stop
	if err := x.body(&order); err != nil {
		return told, err
	}
	due, err := x.h.Store.Due(x.r.Context())
	if err != nil {
		return told, err
	}
	if x.h.Remembered != nil {
		due = append(due, x.h.Remembered()...)
	}
	var boxes []storage.BoxID
	for _, id := range due {
		if tenant, server := id.Parts(); match(server) && x.caller.may(tenant, server) && !slices.Contains(boxes, id) {
			boxes = append(boxes, id)
		}
	}
	if told, err = x.stop(order, boxes, ""); err != nil || order.Keep {
		return told, err
	}
	return told, forget(x, match)
}

// forget deletes what matching servers that the caller sees have answered to initialize and to lists.
func forget(x *exchange, match func(server string) bool) error {
	if x.h.Forget == nil || x.h.Servers == nil {
		return nil
	}
	tenants, err := x.tenants()
	if err != nil {
		return err
	}
	file := x.h.Servers()
	for _, name := range file.Names() {
		s, _ := file.Server(name)
		for _, tenant := range tenants {
			if !s.Record || !match(name) || !x.caller.may(tenant, name) {
				continue
			}
			if err := x.h.Forget(x.r.Context(), tenant, s); err != nil {
				return err
			}
		}
	}
	return nil
}
