package remote

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// unreadable is the error of an answer that is no JSON-RPC response.
type unreadable struct {
	why  string
	said string // the beginning of the answer
}

func (u *unreadable) Error() string { return u.why + ": " + u.said }

const (
	maxSaid  = 4 << 10 // bytes of an answer that are kept
	maxQuote = 200     // bytes of the answer that an error quotes
)

// quote returns the error with the beginning of the answer, without secrets.
func (u *unreadable) quote(secrets []string) string {
	said := hide(u.said, secrets)
	if len(said) > maxQuote {
		said = strings.ToValidUTF8(said[:maxQuote], "") + "\u2026"
	}
	return u.why + ": " + said
}

func newUnreadable(data []byte, err error) *unreadable {
	why := "its error has no id"
	if wrong, ok := errors.AsType[*wire.Error](err); ok {
		why = wrong.Message
	}
	said := strings.ToValidUTF8(string(data[:min(len(data), maxSaid)]), "")
	return &unreadable{why, strings.Join(strings.Fields(said), " ")}
}

// straight returns an event as events with one message each. It mends messages of an odd form
// as wire.Hear does, and splits batches.
func straight(e wire.SSE) []wire.SSE {
	if e.Name != "" && e.Name != "message" || len(e.Data) == 0 {
		return []wire.SSE{e}
	}
	if _, err := wire.Parse(e.Data); err == nil {
		return []wire.SSE{e}
	}
	var all []wire.SSE
	wire.Hear(e.Data, func(m wire.Message, _ []byte, err error) {
		if err == nil {
			all = append(all, wire.SSE{Name: e.Name, Data: m.Raw, HasData: true})
		}
	})
	if len(all) == 0 {
		return []wire.SSE{e}
	}
	last := &all[len(all)-1]
	last.ID, last.Retry = e.ID, e.Retry
	return all
}

// read parses a message that came while the request with this id waits. The error is *unreadable if
// the message is a malformed response to the request. It is also *unreadable for a response without
// an id if the stream is for this request alone.
func (t *conversation) read(data []byte, id json.RawMessage) (wire.Message, error) {
	m, err := wire.Parse(data)
	switch {
	case err != nil && wire.Lookup(data, "method") == nil && wire.SameID(wire.Lookup(data, "id"), id),
		err == nil && m.Kind == wire.Response && m.ID == nil && t.single:
		return m, newUnreadable(data, err)
	}
	return m, err
}
