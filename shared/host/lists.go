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

// A handshake record also keeps what a server lists: tools, prompts, resources and
// templates. The relay function notes a list when a client has asked for it and the
// box has answered. A later client of the same principal gets it without the box.
//
// The name of a part holds everything the list may depend on: tenant, configuration,
// principal, protocol version and the capabilities of the client; and the session, once
// its process has done more than to answer lists ([session.Session].Served). With
// [Server].SameLists the operator says that tools and templates do not depend on the
// principal. Prompts and resources of one principal are told to no other.
//
// A client gets the list that its own process would give. So the record is used only
// while no process of the session runs that has done anything, and
//
//   - if the server announces changes of the list (listChanged), until a process of the
//     box announces one ([session.Box].Told). A list of a later generation counts again;
//   - if it does not, while the box sleeps and has done nothing but answer lists since
//     the list was taken ([session.Box].Worked). A tool may have changed the list without a word.
//
// Nothing is kept of a server whose lists change on their own ([Server].OwnLists).

// maxList bounds a list that is kept. For a longer one the box is asked each time.
const maxList = 255 << 10

// keptList is the result in the part of a handshake record that belongs to a list.
type keptList struct {
	Gen       session.Generation `json:"gen"`            // of the box whose process said it
	Announced bool               `json:"says,omitempty"` // the server announces changes of this list
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

// holds says that a process of the server would give this list if it was started now.
func (k keptList) holds(method string, same bool, box session.Box) bool {
	return k.Gen > *toldOf(&box.Told, kindOf(method)) && (k.Announced || same || box.State == session.Asleep && k.Gen > box.Worked)
}

// runs says that the session may have a process that runs and has done something: only
// that one knows its lists.
func runs(s session.Session, box session.Box) bool { return s.Served && box.State != session.Asleep }

// listPart is the part of a handshake record that has the answer to a request of a
// session; ok is false for what is not kept. Pages are not: a cursor may be worth
// nothing to another process.
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

// sameList says that all principals get the same list.
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

// partOf names the part for a list by what a server knows of the session's client.
func partOf(s session.Session, method, whose string) (part string, ok bool) {
	abilities, ok := abilitiesOf(wire.Lookup(s.Init, "capabilities"))
	return strings.Join([]string{method, s.Version, abilities, whose}, " "), ok
}

// whose names who gets a list from the record: everybody, the sessions of a principal
// whose processes have done nothing yet, or the session alone once its own has.
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

// abilitiesOf is a name for a client's capabilities. There are few of them, so that
// clients cannot fill the store: one who has others, about which nothing is known
// here, gets no list from the record.
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

// recorded answers a request from the handshake record. Without a result the box is
// to be asked, and part, if it is not "", is where its answer belongs. It costs a
// read for a list that the record may answer, and nothing for anything else.
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

// plainList is a list as a legacy client knows it. A server that speaks both eras may
// have been asked for it in the modern one.
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

// noteList keeps what a box has answered to a request for a list, if that is all of
// it. It costs a read if the same list stands in the record already, and else two
// reads and a write.
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

// announces says that the server has promised, when it was initialized, to tell of
// changes of the list that an address asks for. Without a record of that it has not.
func (o Outlet) announces(ctx context.Context, a session.Address) (bool, error) {
	method, rest, _ := strings.Cut(a.List, " ")
	version, _, _ := strings.Cut(rest, " ")
	record, err := o.Store.Handshake(ctx, a.Digest, version)
	if err != nil {
		return false, unlessGone(err)
	}
	return string(wire.Lookup(record.Result, "capabilities", kindOf(method), "listChanged")) == "true", nil
}

// forgetLists makes worthless what the record says of lists that a process says have
// changed, before any client can hear of it and ask. It costs a read, and a write for
// the first time in a generation.
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

// changedLists are the kinds of lists that events say have changed.
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

// kindOf is what a method lists, or a notification is about: the name of a capability.
func kindOf(method string) string {
	kind, _, _ := strings.Cut(method, "/")
	return kind
}

// toldOf is the generation for a kind of list.
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
