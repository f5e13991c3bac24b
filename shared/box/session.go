package box

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// maxUntold limits how many bytes of a session's events wait for the sink. Above it the box stops
// reading from the processes of the session.
const maxUntold = 4 << 20

// session is the state of one client session. [Box].mu guards it. The box forgets a session that
// has no process and no output that waits for the sink.
type session struct {
	box       *Box
	id        string
	principal string
	departed  bool // the session is a member of no group

	// These fields are from the last delivery; init is from the last delivery that had one.
	ticket, level string
	subscriptions []string
	init          json.RawMessage

	moved bool // the definition of the server has changed, and the client has not been told that lists may have changed
	held  bool // the client is told of changed tools even if the server does not announce such changes

	over bool // the session has ended, and the files of its process are removed with the process

	untold []pendingOutput // output that waits for the sink
	bytes  int             // size of the messages in untold
	room   sync.Cond       // signaled when bytes has shrunk
	// telling says that a goroutine passes untold to the sink.
	telling bool
}

type pendingOutput struct {
	call     func(Sink)
	streamID string // the request stream of the output; "" for anything else
	bytes    int
}

// note stores the state of the session that comes with a delivery.
func (s *session) note(d frame.Deliver, msgs []wire.Message) {
	s.ticket, s.level, s.subscriptions = d.Ticket, d.Level, d.Subscribed
	s.moved, s.held = s.moved || d.Moved, d.Held
	if len(d.Init) > 0 {
		s.init = d.Init
		return
	}
	for _, m := range msgs {
		if m.Kind == wire.Request && m.Method == wire.MethodInitialize {
			s.init = m.Params
		}
	}
}

// announce tells the client that lists may have changed, after the definition of the server has
// changed. The argument is the new server's result of initialize.
func (s *session) announce(result json.RawMessage) {
	s.moved = false
	for _, changed := range []struct{ kind, method string }{
		{"tools", wire.NotifyToolsChanged}, {"prompts", wire.NotifyPromptsChanged}, {"resources", wire.NotifyResourcesChanged},
	} {
		tells := string(wire.Lookup(result, "capabilities", changed.kind, "listChanged")) == "true"
		if tells || s.held && changed.kind == "tools" {
			s.common(wire.NewNotification(changed.method, nil))
		}
	}
}

// tidy forgets the session if it is a member of no group and no output waits.
func (s *session) tidy() {
	if s.departed && !s.telling && s.box.sessions[s.id] == s {
		delete(s.box.sessions, s.id)
	}
}

// # Output to the sink

// common passes a message of the standalone stream to the sink.
func (s *session) common(raw []byte) {
	s.output("", frame.Event{Ticket: s.ticket, Raw: raw})
}

// output passes a message to the sink. The argument stream is "" for the standalone stream.
func (s *session) output(stream string, e frame.Event) {
	e.Session, e.Stream = storage.ID(s.id), storage.StreamID(stream)
	s.tell(pendingOutput{call: func(k Sink) { k.Event(e) }, streamID: stream, bytes: len(e.Raw)})
}

// tell queues a call of the sink, after those that are waiting already.
func (s *session) tell(t pendingOutput) {
	s.untold = append(s.untold, t)
	s.hold(t.bytes)
	if !s.telling {
		s.telling = true
		s.box.enter()
		s.box.server.Guard.Go(s.tellAll)
	}
}

// hold adds to the bytes that wait for the sink. The argument is negative when the sink has taken
// some.
func (s *session) hold(bytes int) {
	s.bytes += bytes
	s.box.server.Guard.Budget().Hold(bytes)
}

// tellAll makes all queued calls of the sink, one after the other, and does not hold the lock
// during a call.
func (s *session) tellAll() {
	b := s.box
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(s.untold) > 0 {
		t := s.untold[0]
		s.untold[0] = pendingOutput{}
		s.untold = s.untold[1:]
		s.call(t)
		s.hold(-t.bytes)
		s.room.Broadcast()
	}
	s.untold = nil
	s.telling = false
	s.tidy()
	b.leave()
}

// call makes one call of the sink without the lock. Even if the sink panics, call takes the lock
// again, because tellAll then unlocks it.
func (s *session) call(t pendingOutput) {
	s.box.mu.Unlock()
	defer s.box.mu.Lock()
	t.call(s.box.sink)
}

func (s *session) dropStream(id string) {
	s.untold = slices.DeleteFunc(s.untold, func(t pendingOutput) bool {
		if t.streamID != id {
			return false
		}
		s.hold(-t.bytes)
		return true
	})
	s.room.Broadcast()
}

// verbosity returns the position of an MCP log level, from 0 for debug, the most verbose one, and
// -1 for any other string.
func verbosity(level string) int {
	return slices.Index([]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}, level)
}

// can reports whether the client's declared capabilities let it answer m, a request of the server.
func (s *session) can(m wire.Message) bool {
	has := func(path ...string) bool {
		v := wire.Lookup(s.init, append([]string{"capabilities"}, path...)...)
		return v != nil && string(v) != "null"
	}
	switch m.Method {
	case wire.MethodRootsList:
		return has("roots")
	case wire.MethodCreateMessage:
		return has("sampling") && (wire.Lookup(m.Params, "tools") == nil || has("sampling", "tools"))
	case wire.MethodElicit:
		mode, _ := wire.String(wire.Lookup(m.Params, "mode"))
		return has("elicitation") && (mode != "url" || has("elicitation", "url"))
	default:
		return true
	}
}

// wants reports whether a session that shares its process should get m, a notification that
// belongs to no call.
func (s *session) wants(m wire.Message) bool {
	switch m.Method {
	case wire.NotifyMessage:
		level, _ := wire.String(wire.Lookup(m.Params, "level"))
		at, from := verbosity(level), verbosity(s.level)
		return at < 0 || at >= from // from is -1 if the session has set no level; it then gets everything
	case wire.NotifyResourceUpdated:
		uri, _ := wire.String(wire.Lookup(m.Params, "uri"))
		return slices.ContainsFunc(s.subscriptions, func(to string) bool {
			return uri == to || strings.HasPrefix(uri, strings.TrimSuffix(to, "/")+"/")
		})
	default:
		return true
	}
}

// client returns what the client said about itself in initialize, for use in requests of
// 2026-07-28.
func (s *session) client() bridge.Legacy { return bridge.ReadLegacy(initParams(s.init)) }

// initParams returns the params of a client's initialize. If they cannot be used, it returns the
// params of a client without capabilities.
func initParams(of json.RawMessage) json.RawMessage {
	if m, err := wire.Parse(wire.NewRequest(json.RawMessage("0"), wire.MethodInitialize, of)); err == nil && wire.Lookup(m.Params, "protocolVersion") != nil {
		return m.Params
	}
	return json.RawMessage(`{"protocolVersion":"` + wire.V20251125 + `","capabilities":{},"clientInfo":{"name":"dormouse","version":"1"}}`)
}
