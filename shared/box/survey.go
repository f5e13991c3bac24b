package box

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"hash"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// survey asks a process that was just started for its lists, because no process announces what
// changed before its start.
type survey struct {
	p      *process
	left   []wire.List       // lists that were not asked for yet; the first is being asked for
	hashes map[string]string // hashes of the complete lists, by method
	pages  wire.Pages        // the pages so far of the current list
	list   hash.Hash         // hash of the current list's entries so far
}

func (v *survey) begin() {
	said := v.p.proto.initialized(v.p.group.speaker)
	for _, l := range wire.Lists() {
		if wire.Lookup(said, "capabilities", l.Capability) != nil {
			v.left = append(v.left, l)
		}
	}
	v.ask()
}

// ask asks for the first page of the next list.
func (v *survey) ask() {
	if len(v.left) == 0 {
		v.over()
		return
	}
	v.pages, v.list = wire.Pages{}, sha256.New()
	v.page(nil)
}

// page asks for one page of the current list; cursor is nil for the first page.
func (v *survey) page(cursor json.RawMessage) {
	method := v.left[0].Method
	params := v.p.proto.params(method)
	switch {
	case cursor == nil:
	case params == nil:
		params = json.RawMessage(`{"cursor":` + string(cursor) + `}`)
	default: // params is an object with members
		params = json.RawMessage(`{"cursor":` + string(cursor) + `,` + string(params[1:]))
	}
	v.p.ask(method, params, v.told)
}

// told handles the response with a page. If the process fails to list, the survey ends without a
// fingerprint.
func (v *survey) told(m wire.Message) {
	l := v.left[0]
	switch {
	case m.Error == nil:
		v.list.Write(wire.Lookup(m.Result, l.Entries))
		if cursor, err := v.pages.Next(m.Result); err == nil && cursor != nil {
			v.page(cursor)
			return
		}
		v.hashes[l.Method] = base64.RawURLEncoding.EncodeToString(v.list.Sum(nil)[:16])
	case string(wire.Lookup(m.Error, "code")) != strconv.Itoa(int(wire.CodeMethodNotFound)):
		return
	}
	v.left = v.left[1:]
	v.ask()
}

func (v *survey) over() {
	g := v.p.group
	fingerprint, err := json.Marshal(v.hashes)
	if err != nil || len(v.hashes) == 0 {
		return // the process has no lists; a map of strings always marshals
	}
	own := g.box.server.Scope == ScopePrincipal || g.box.server.Kept == ScopePrincipal || len(g.box.server.Principal) > 0
	f := frame.Status{Session: storage.ID(g.speaker.id), Ticket: g.speaker.ticket, Lists: g.kind(own), Own: own, Payload: fingerprint}
	g.speaker.tell(pendingOutput{call: func(k Sink) { k.Status(f) }})
}

// kind returns a hash of everything that the lists may depend on: the protocol version and the
// capabilities that the process was told and, if own is true, the principal of the session.
func (g *group) kind(own bool) string {
	var capabilities any
	params := g.initParams()
	_ = json.Unmarshal(wire.Lookup(params, "capabilities"), &capabilities) // stays nil if there are no capabilities
	said := []any{string(wire.Lookup(params, "protocolVersion")), capabilities}
	if own {
		said = append(said, g.speaker.principal)
	}
	text, err := json.Marshal(said) // sorts the keys
	if err != nil {
		return "" // cannot happen: all parts are JSON
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}
