package remote

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

const (
	// rootsWithin is how long Tell waits for the server to ask for the client's changed roots.
	rootsWithin = time.Second
	// tellWithin bounds the HTTP request of Tell and Forward.
	tellWithin = 10 * time.Second
)

// Tell implements native.Executor.
func (s *server) Tell(ctx context.Context, r native.Request) {
	x, fault := s.exchange(ctx, r)
	if fault != nil {
		return
	}
	ok, err := joined(ctx, x)
	if !ok || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	roots, raw := r.Method == wire.NotifyRootsChanged, r.Raw
	if raw == nil {
		raw = wire.NewNotification(r.Method, r.Params)
	}
	switch {
	case x.link.Era == eraModern && wire.OfExtension(r.Method):
		header := x.sessionHeader()
		header.Set(wire.HeaderMethod, r.Method)
		_ = post(ctx, x, x.url, raw, header) // a notification may be lost
		return
	case x.link.Era != eraHTTP:
		return // no session at the server is open: it asks for the roots during the next request
	case !roots || !listens(x):
		if bridge.SaysModern(r.Params) {
			raw = wire.NewNotification(r.Method, bridge.Strip(r.Method, r.Params))
		}
		_ = x.tell(ctx, nil, raw) // a notification may be lost
		return
	}
	standalone := join(ctx, x, false)
	defer standalone.leave(ctx, x)
	if x.tell(ctx, nil, raw) != nil {
		return
	}
	timer := time.NewTimer(rootsWithin)
	defer timer.Stop()
	select {
	case <-standalone.stream.asked:
	case <-standalone.stream.ended:
	case <-timer.C:
	}
}

// Forward implements native.Executor.
func (s *server) Forward(ctx context.Context, r native.Request, name string, response []byte) error {
	x, fault := s.exchange(ctx, r)
	if fault != nil {
		return storage.Errorf(storage.Unavailable, "the answer was not passed on: %s", fault.Message)
	}
	ok, err := joined(ctx, x)
	if err != nil {
		return err
	}
	of, text, _ := strings.Cut(name, "-")
	id, bad := base64.RawURLEncoding.DecodeString(text)
	to, open := recall(s.Servers, s.endpoints, standaloneKey{storage.ID(x.r.Session.ID()), of})
	open = open || x.link.Era == eraHTTP && of == sessionName(x.link.Session)
	if !ok || !open || bad != nil || !wire.Valid(id) {
		return nil // the session in which the server asked has ended
	}
	raw, ok := wire.Replace(response, id, "id")
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	err = x.tell(ctx, &conversation{endpoint: to}, raw)
	var refused *refusal
	if err == nil || errors.As(err, &refused) && !refused.passes() {
		return nil // the server does not wait for this answer any more
	}
	return storage.Errorf(storage.Unavailable, "the remote server %s did not take the answer: %s", s.Name, hide(plain(err).Error(), x.secrets))
}

// renamed returns m with another id, from which Forward can read the server's own id. m is a
// question of the server, or the cancellation of one; the argument of names the session there. If the
// server's id is too long, renamed returns nil, and refuses a question.
func renamed(ctx context.Context, x *exchange, talk *conversation, of string, m wire.Message) []byte {
	id, place := m.ID, []string{"id"}
	if m.Kind == wire.Notification {
		id, place = wire.Lookup(m.Params, "requestId"), []string{"params", "requestId"}
	}
	name := of + "-" + base64.RawURLEncoding.EncodeToString(id)
	if len(id) == 0 || len(name) > storage.MaxForward {
		if m.Kind == wire.Request {
			x.refuse(ctx, talk, m)
		}
		return nil
	}
	named, _ := json.Marshal(storage.ForwardID(name)) // cannot fail: it is a string
	raw, _ := wire.Replace(m.Raw, named, place...)
	return raw
}

// sessionName returns the name of a server's session in the ids of questions; see renamed.
func sessionName(id string) string { return hashOf(id)[:8] }

// session returns the name of the session in which the server gets the request; see renamed. A session
// of HTTP+SSE has no id, and is for this request alone.
func (c *following) session() string {
	if c.link.Era == eraSSE {
		return sessionName(string(c.stream))
	}
	return sessionName(c.link.Session)
}
