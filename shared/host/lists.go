package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// A handshake record also keeps a server's lists: tools, prompts, resources and templates.
// The relay function stores a list when a client has asked for it and the box has answered.
// A later client of the same principal gets the list without the box.
//
// The name of a part holds everything that the list may depend on: tenant, configuration,
// principal, protocol version and the client's capabilities. Once the session's process has
// done more than answer lists ([session.Session].Served), the name holds the session instead
// of the principal. With [Server].SameLists the operator says that tools and templates do
// not depend on the principal. Prompts and resources are never shared between principals.
//
// A client gets the list that its own process would give. So the record is not used while
// the session may have a running process that has done anything. Apart from that it is used
//
//   - if the server announces changes of the list (listChanged) or SameLists covers it,
//     until a process of the box announces a change ([session.Box].Told). A list of a
//     later generation is used again;
//   - otherwise, while the box sleeps and has only answered lists since the list was taken
//     ([session.Box].Worked). A tool may have changed the list without a word.
//
// Nothing is kept of a server whose lists change on their own ([Server].OwnLists).

// maxList bounds a list that is kept, in bytes. A longer list comes from the box each time.
const maxList = 255 << 10

// keptList is the result in a part of a handshake record that keeps a list.
type keptList struct {
	Gen       session.Generation `json:"gen"`            // of the box that gave the list
	Announced bool               `json:"says,omitempty"` // the server announces changes of the list
	List      json.RawMessage    `json:"list"`
}

func (k keptList) encode() json.RawMessage {
	b := fmt.Appendf(nil, `{"gen":%d`, k.Gen)
	if k.Announced {
		b = append(b, `,"says":true`...)
	}
	b = append(append(b, `,"list":`...), k.List...) // as the server wrote it
	return append(b, '}')
}

// holds reports whether a process of the server would give this list if it started now. same
// is the result of sameList.
func (k keptList) holds(method string, same bool, box session.Box) bool {
	return k.Gen > *toldOf(&box.Told, kindOf(method)) && (k.Announced || same || box.State == session.Asleep && k.Gen > box.Worked)
}

// runs reports whether the session may have a running process that has done something. Only
// that process knows its lists.
func runs(s session.Session, box session.Box) bool { return s.Served && box.State != session.Asleep }

// listPart returns the name of the part that keeps the answer to a request of a session. ok
// is false if the record does not keep the answer. Pages are not kept, because a cursor may
// mean nothing to another process.
func listPart(s session.Session, c Caller, method string, params json.RawMessage) (part string, ok bool) {
	same := c.Server.sameList(method)
	if !c.Server.Record || c.Server.OwnLists || s.Digest != c.Server.Digest || !isList(method) {
		return "", false
	}
	var members map[string]json.RawMessage
	if params != nil && json.Unmarshal(params, &members) != nil {
		return "", false
	}
	delete(members, "_meta")
	if len(members) > 0 {
		return "", false
	}
	return partOf(s, method, whose(s, same))
}

// sameList reports whether all principals get the same list.
func (s Server) sameList(method string) bool {
	return s.SameLists && (method == wire.MethodToolsList || method == wire.MethodResourceTemplatesList)
}

func isList(method string) bool {
	switch method {
	case wire.MethodToolsList, wire.MethodPromptsList, wire.MethodResourcesList, wire.MethodResourceTemplatesList:
		return true
	default:
		return false
	}
}

// partOf returns the name of the part for a list. It is made of everything that a server
// knows of the session's client.
func partOf(s session.Session, method, whose string) (part string, ok bool) {
	abilities, ok := abilitiesOf(wire.Lookup(s.Init, "capabilities"))
	return strings.Join([]string{method, s.Version, abilities, whose}, " "), ok
}

// whose says which sessions share a list: all sessions (same), the sessions of a principal
// whose processes have done nothing yet, or one session whose process has.
func whose(s session.Session, same bool) string {
	switch {
	case same:
		return ""
	case s.Served:
		return string(s.ID)
	default:
		sum := sha256.Sum256([]byte(s.Principal))
		return base64.RawURLEncoding.EncodeToString(sum[:12])
	}
}

// abilitiesOf returns a name for a client's capabilities. It knows few capabilities, so that
// clients cannot fill the store with names. known is false for a capability that it does not
// know and that is not {}; the client then gets no list from the record.
func abilitiesOf(capabilities json.RawMessage) (name string, known bool) {
	var has map[string]json.RawMessage
	if capabilities != nil && json.Unmarshal(capabilities, &has) != nil {
		return "", false
	}
	modes := map[string][]string{"roots": nil, "sampling": {"context", "tools"}, "elicitation": {"form", "url"}, "tasks": nil}
	var names []string
	for ability, value := range has {
		finer, ok := modes[ability]
		switch {
		case !ok && string(value) != "{}":
			return "", false
		case !ok:
			continue
		}
		names = append(names, ability)
		for _, mode := range finer {
			if wire.Lookup(value, mode) != nil {
				names = append(names, ability+"."+mode)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, ","), true
}

// recorded answers a request from the handshake record. If result is nil, the caller asks
// the box. part then is where the answer belongs, or "" if it is not kept. Cost: one read
// for a list that the record may have, otherwise none.
func (h *core) recorded(ctx context.Context, c Caller, s session.Session, box session.Box, method string, params json.RawMessage) (result json.RawMessage, part string, err error) {
	part, ok := listPart(s, c, method, params)
	if !ok || runs(s, box) {
		return nil, part, nil
	}
	record, err := h.store.Handshake(ctx, session.RecordFor(s.Tenant, s.Digest), part)
	if errors.Is(err, session.NotFound) {
		return nil, part, nil
	}
	if err != nil {
		return nil, "", err
	}
	var kept keptList
	if json.Unmarshal(record.Result, &kept) != nil || !kept.holds(method, c.Server.sameList(method), box) {
		return nil, part, nil
	}
	if s.Transport != session.Modern {
		return plainList(kept.List), part, nil
	}
	return kept.List, part, nil
}

// plainList returns a list in the form of the legacy era. A server that speaks both eras may
// have given it in the modern form.
func plainList(list json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if wire.Lookup(list, "resultType") == nil || json.Unmarshal(list, &members) != nil {
		return list
	}
	for _, modern := range []string{"resultType", "ttlMs", "cacheScope"} {
		delete(members, modern)
	}
	plain, err := json.Marshal(members)
	if err != nil {
		return list // it was JSON before
	}
	return plain
}

// noteList keeps the answer of a box to a request for a list, if it is the whole list and
// has at most maxList bytes. Cost: one read if the record has the same list already,
// otherwise two reads and a write.
func (o Outlet) noteList(ctx context.Context, a session.Address, b session.Batch) error {
	list := wire.Lookup(b.Events[len(b.Events)-1], "result")
	if len(list) == 0 || list[0] != '{' || len(list) > maxList || wire.Lookup(list, "nextCursor") != nil {
		return nil
	}
	now, kept := time.Now(), keptList{Gen: b.Gen, List: list}
	old, err := o.Store.Handshake(ctx, a.Digest, a.List)
	if err != nil && !errors.Is(err, session.NotFound) {
		return err
	}
	var was keptList
	if err == nil && json.Unmarshal(old.Result, &was) == nil && was.Gen == b.Gen && bytes.Equal(was.List, list) {
		return nil
	}
	if kept.Announced, err = o.announces(ctx, a); err != nil {
		return err
	}
	return o.Store.SaveHandshake(ctx, session.Handshake{Digest: a.Digest, Version: a.List, Result: kept.encode(), Taken: now, Expires: now.Add(session.HandshakeLife)})
}

// announces reports whether the server promised, in its answer to initialize, to announce
// changes of the list that an address asks for. Without a record of that answer it did not.
func (o Outlet) announces(ctx context.Context, a session.Address) (bool, error) {
	method, rest, _ := strings.Cut(a.List, " ")
	version, _, _ := strings.Cut(rest, " ")
	record, err := o.Store.Handshake(ctx, a.Digest, version)
	if err != nil {
		return false, unlessGone(err)
	}
	return string(wire.Lookup(record.Result, "capabilities", kindOf(method), "listChanged")) == "true", nil
}

// forgetLists makes kept lists invalid when a process says that they have changed, before
// any client can hear of it and ask. Cost: one read, and one write for the first such
// notification of a kind in a generation.
func (o Outlet) forgetLists(ctx context.Context, a session.Address, b session.Batch) error {
	changed := changedLists(b.Events)
	if len(changed) == 0 || a.Digest == "" {
		return nil
	}
	for {
		box, err := o.Store.Box(ctx, a.Box)
		if err != nil {
			return err
		}
		news := false
		for _, kind := range changed {
			if told := toldOf(&box.Told, kind); *told < b.Gen {
				*told, news = b.Gen, true
			}
		}
		if !news {
			return nil
		}
		if err = o.Store.SaveBox(ctx, box); !errors.Is(err, session.Conflict) {
			return err
		}
	}
}

// changedLists returns the kinds of lists that events say have changed.
func changedLists(events [][]byte) (kinds []string) {
	for _, raw := range events {
		method, _ := wire.String(wire.Lookup(raw, "method"))
		switch method {
		case wire.NotifyToolsChanged, wire.NotifyPromptsChanged, wire.NotifyResourcesChanged:
			kinds = append(kinds, kindOf(strings.TrimPrefix(method, "notifications/")))
		}
	}
	return kinds
}

// kindOf returns the capability that a list method or a list_changed notification belongs to.
func kindOf(method string) string {
	kind, _, _ := strings.Cut(method, "/")
	return kind
}

// toldOf returns the field of t for a kind of list.
func toldOf(t *session.Told, kind string) *session.Generation {
	switch kind {
	case "tools":
		return &t.Tools
	case "prompts":
		return &t.Prompts
	default:
		return &t.Resources
	}
}
