package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// era is the protocol that a server speaks.
type era string

const (
	eraModern era = "modern" // 2026-07-28
	eraHTTP   era = "http"   // Streamable HTTP, 2025-03-26 to 2025-11-25
	eraSSE    era = "sse"    // HTTP+SSE, 2024-11-05
)

// link describes the session at the server that belongs to a client's session here.
type link struct {
	Era         era             `json:"era"`
	Of          string          `json:"of"` // hash of the server's URL
	Session     string          `json:"session,omitempty"`
	Version     string          `json:"version,omitempty"`
	Handshake   json.RawMessage `json:"handshake,omitempty"` // the result of initialize
	Level       string          `json:"level,omitempty"`     // the last log level that the server was told
	streamState                 // of the standalone stream

	rev int64
}

// streamState is what is known of the standalone stream of a session.
type streamState struct {
	Heard string `json:"heard,omitempty"` // id of its last event
	Deaf  bool   `json:"deaf,omitempty"`  // the server has no such stream
	// Mixes means that the server repeats events of other streams on a resumed standalone
	// stream, which is a fault of the server. The standalone stream of a server that mixes is
	// never resumed.
	Mixes bool `json:"mixes,omitempty"`
	// Sound means that the server is known not to mix: a resumed stream repeated no event of another
	// stream although there were such events (see Others).
	Sound bool `json:"sound,omitempty"`
	// Others means that requests have had events since the standalone stream's last event.
	Others bool `json:"others,omitempty"`
}

// linkName is the name of the durable value that holds a link.
const linkName = "remote"

// How long the handshake and the end of a session may take.
const (
	greetWithin = 30 * time.Second
	leaveWithin = time.Second
)

// open reads the link of the client's session, or opens a session at the server. If anew is
// true, the server does not know the session in x.link any more.
func (x *exchange) open(ctx context.Context, anew bool) error {
	id, of := storage.ID(x.r.Session.ID()), hashOf(x.s.URL)
	if was, ok := recall(x.s.Servers, x.s.links, id); ok && was.Of == of && !anew {
		x.link = was
		return nil
	}
	used := x.link
	if !x.r.Once {
		var kept link
		rev, err := x.r.Session.State(native.OfSession).Load(ctx, linkName, &kept)
		if err != nil && errors.Is(err, storage.Unavailable) {
			return err
		}
		kept.rev = rev
		if x.link = kept; err == nil && rev != 0 && kept.Of == of && (!anew || kept.Session != used.Session) {
			x.s.rememberLink(id, kept)
			return nil
		}
	}
	rev := x.link.rev
	if anew {
		forget(x.s.Servers, x.s.eras, x.s.URL)
	}
	within := x.s.Startup
	if within <= 0 {
		within = greetWithin
	}
	greeting, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	x.link = link{Of: of}
	_, known := recall(x.s.Servers, x.s.eras, x.s.URL)
	err := x.greet(greeting)
	if refused, ok := errors.AsType[*refusal](err); ok && known && (refused.stale() || refused.status == http.StatusOK) {
		forget(x.s.Servers, x.s.eras, x.s.URL)
		err = x.greet(greeting)
	}
	if err != nil {
		if greeting.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("it did not finish the handshake within %s (startup_timeout_sec)", within)
		}
		return err
	}
	x.link.rev = rev
	remember(x.s.Servers, x.s.eras, x.s.URL, x.offers)
	if err := subscribe(greeting, x); err != nil {
		return err
	}
	return x.keep(ctx)
}

// joined reads the link of the client's session, and reports whether there is one.
func joined(ctx context.Context, x *exchange) (bool, error) {
	id, of := storage.ID(x.r.Session.ID()), hashOf(x.s.URL)
	was, ok := recall(x.s.Servers, x.s.links, id)
	if !ok || was.Of != of {
		rev, err := x.r.Session.State(native.OfSession).Load(ctx, linkName, &was)
		if err != nil || rev == 0 || was.Of != of {
			return false, err
		}
		was.rev = rev
	}
	x.link = was
	return true, nil
}

// keep saves the link. If another instance has saved a link with another session at the server,
// keep puts that link into x, and ends the session that x had.
func (x *exchange) keep(ctx context.Context) error {
	if x.r.Once {
		return nil
	}
	id, state := storage.ID(x.r.Session.ID()), x.r.Session.State(native.OfSession)
	rev, err := state.Save(ctx, linkName, x.link.rev, x.link)
	switch {
	case errors.Is(err, storage.Conflict):
		var other link
		if rev, err = state.Load(ctx, linkName, &other); err != nil {
			return err
		}
		if other.Of == x.link.Of && other.Session != x.link.Session {
			x.leave(ctx)
			x.link = other
		}
	case errors.Is(err, storage.TooLarge):
		err = nil // the answer to initialize is too long for the store, so each process sends initialize
	case err != nil:
		return err
	}
	x.link.rev = rev
	x.s.rememberLink(id, x.link)
	return err
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// leave asks the server to end the session, and waits for at most leaveWithin.
func (x *exchange) leave(ctx context.Context) {
	if x.link.Session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	if resp, err := x.do(ctx, http.MethodDelete, x.url, nil, x.sessionHeader()); err == nil {
		_ = resp.Body.Close() // the server may refuse to end a session
	}
}

// greet finds out which protocol the server speaks, and opens a session if the protocol
// has sessions. It sets offers to the newest era of the server.
func (x *exchange) greet(ctx context.Context) error {
	defer func() { x.offers = cmp.Or(x.offers, x.link.Era) }()
	known, _ := recall(x.s.Servers, x.s.eras, x.s.URL)
	if x.s.Transport == SSE {
		known = eraSSE
	}
	if known == "" || known == eraModern {
		modern, err := x.probe(ctx)
		if err != nil {
			return err
		}
		if modern {
			prefer(ctx, x)
			return nil
		}
	}
	if known != eraSSE {
		err := x.initialize(ctx)
		refused, ok := errors.AsType[*refusal](err)
		if err == nil || !ok || !refused.stale() || x.s.Transport == Streamable {
			return err
		}
		if sse := x.greetSSE(ctx); sse == nil {
			return nil
		}
		return err
	}
	return x.greetSSE(ctx)
}

// prefer opens a legacy session at a modern server for a legacy client that sends
// notifications/roots/list_changed, because 2026-07-28 does not have this notification. If the
// server refuses or gives no session id, prefer keeps the modern era.
func prefer(ctx context.Context, x *exchange) {
	modern := x.link
	if !x.r.Legacy || x.r.Once || string(wire.Lookup(x.r.Init, "capabilities", "roots", "listChanged")) != "true" {
		return
	}
	if x.initialize(ctx) != nil || x.link.Session == "" {
		x.link = modern
	}
}

// probe asks a server whether it speaks the modern era. If it does, probe sets the link. An error
// means that the server cannot be reached, wants a credential, or is busy.
func (x *exchange) probe(ctx context.Context) (bool, error) {
	meta := bridge.ReadLegacy(x.r.Init).Params(wire.MethodDiscover, nil, "", false)
	m, err := x.modernOnce(ctx, wire.MethodDiscover, meta, nil)
	x.link.Session = ""
	var refused *refusal
	switch {
	case errors.As(err, &refused) && (refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden || refused.status == http.StatusTooManyRequests):
		return false, err
	case err != nil && (unsent(err) || ctx.Err() != nil):
		return false, err
	case refused != nil:
		m, _ = wire.Parse(refused.raw) // a server of the legacy era may answer anything
	case err != nil:
		return false, nil
	}
	modern := bridge.ReadProbe(m)
	if modern {
		x.link.Era, x.link.Version, x.offers = eraModern, wire.V20260728, eraModern
	}
	return modern, nil
}

// initialize opens a session over Streamable HTTP.
func (x *exchange) initialize(ctx context.Context) error {
	x.link.Session, x.link.Version = "", ""
	id := requestID()
	talk, err := x.ask(ctx, wire.NewRequest(id, wire.MethodInitialize, bridge.Introduce(x.r.Init, x.r.Raw != nil)), nil)
	if err != nil {
		return err
	}
	defer talk.close()
	if err := x.greeted(ctx, talk, id); err != nil {
		return err
	}
	x.link.Era = eraHTTP
	return x.tell(ctx, nil, wire.NewNotification(wire.NotifyInitialized, nil))
}

// greeted reads the answer to initialize into the link.
func (x *exchange) greeted(ctx context.Context, talk *conversation, id json.RawMessage) error {
	m, err := x.await(ctx, talk, id)
	if err != nil {
		return err
	}
	if m.Error != nil {
		said, _ := wire.String(wire.Lookup(m.Error, "message"))
		return &refusal{status: http.StatusOK, said: said, raw: m.Raw}
	}
	version, _ := wire.String(wire.Lookup(m.Result, "protocolVersion"))
	if !slices.Contains(wire.LegacyVersions(), version) {
		return &refusal{status: http.StatusOK, said: "it speaks no version of MCP that Dormouse knows: " + version}
	}
	x.link.Version, x.link.Handshake = version, bytes.Clone(m.Result) // m.Result would keep the whole message in memory
	return nil
}

// await reads messages until the response with this id comes. It answers pings and drops
// other messages.
func (x *exchange) await(ctx context.Context, talk *conversation, id json.RawMessage) (wire.Message, error) {
	for {
		e, err := talk.next(ctx)
		if err != nil {
			return wire.Message{}, err
		}
		m, err := talk.read(e.Data, id)
		switch {
		case errors.As(err, new(*unreadable)):
			return wire.Message{}, err
		case err != nil:
		case m.Kind == wire.Response && wire.SameID(m.ID, id):
			return m, nil
		case m.Kind == wire.Request && m.Method == wire.MethodPing:
			if err := x.tell(ctx, talk, wire.ResultResponse(m.ID, nil)); err != nil {
				return wire.Message{}, err
			}
		}
	}
}
