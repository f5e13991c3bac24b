package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// A handshake record also keeps what a server lists: tools, prompts, resources and
// templates. A list is noted when a client asks for it and its box answers, and
// answered from then on without the box. What it may depend on is in the name of
// its part of the record: the tenant and the configuration, the version and the
// capabilities of the client. It is asked for anew
//
//   - when the box has woken since: the first who asks then gets the process's own,
//     which is noted in its place;
//   - when a process has said that its list has changed. Then it is not one list for
//     all any more, for each process may have changed its own, and everybody asks
//     his own process for a day (listChanges) at least.
//
// A server whose lists depend on anything else has them not kept ([Server].OwnLists).

// RecordFor names the handshake record of a server: by the tenant too, because what
// is in it was said in a box, and a box is its tenant's.
func RecordFor(tenant, digest string) string { return tenant + "/" + digest }

const (
	// maxList bounds a list that is kept. Who has a longer one asks a box.
	maxList = 256 << 10
	// listChanges is for how long a list that has changed is not kept again.
	listChanges = 24 * time.Hour
)

// changedList stands in the record for a list that has changed.
const changedList = "null"

// listPart is the part of a handshake record that has the answer to a request of a
// session; ok is false for what is not kept. Pages are not: a cursor may be worth
// nothing to another process.
func (s Session) listPart(c Caller, method string, params json.RawMessage) (part string, ok bool) {
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
	return s.partOf(method)
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
func (s Session) partOf(method string) (part string, ok bool) {
	abilities, ok := abilitiesOf(wire.Lookup(s.Init, "capabilities"))
	return strings.Join([]string{method, s.Version, abilities}, " "), ok
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
// read for a list and nothing for anything else.
func (h *Host) recorded(ctx context.Context, c Caller, s Session, box Box, method string, params json.RawMessage) (result json.RawMessage, part string, err error) {
	part, ok := s.listPart(c, method, params)
	if !ok {
		return nil, "", nil
	}
	list, err := h.store.Handshake(ctx, RecordFor(s.Tenant, s.Digest), part)
	switch {
	case errors.Is(err, NotFound):
		return nil, part, nil
	case err != nil:
		return nil, "", err
	case string(list.Result) == changedList, box.State == Awake && list.Taken.Before(box.Changed):
		return nil, part, nil
	}
	if s.Transport != Modern {
		return plainList(list.Result), part, nil
	}
	return list.Result, part, nil
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
// it.
func (o Outlet) noteList(ctx context.Context, a Address, response []byte) error {
	list := wire.Lookup(response, "result")
	if len(list) == 0 || list[0] != '{' || len(list) > maxList || wire.Lookup(list, "nextCursor") != nil {
		return nil
	}
	now := time.Now()
	old, err := o.Store.Handshake(ctx, a.Digest, a.List)
	switch {
	case err != nil && !errors.Is(err, NotFound):
		return err
	case err == nil && string(old.Result) == changedList && now.Sub(old.Taken) < listChanges:
		return nil
	}
	return o.Store.SaveHandshake(ctx, Handshake{Digest: a.Digest, Version: a.List, Result: bytes.Clone(list), Taken: now, Expires: now.Add(HandshakeLife)})
}

// forgetLists takes lists out of the record of which a process says that they have
// changed, before anybody can hear of it and ask.
func (o Outlet) forgetLists(ctx context.Context, a Address, b Batch) error {
	changed := changedLists(b.Events)
	if len(changed) == 0 || a.Digest == "" {
		return nil
	}
	s, _, err := o.Store.Load(ctx, a.Session, a.Box)
	if err != nil {
		return unlessGone(err)
	}
	for _, method := range changed {
		part, ok := s.partOf(method)
		if !ok {
			continue
		}
		now := time.Now()
		if err := o.Store.SaveHandshake(ctx, Handshake{Digest: a.Digest, Version: part, Result: json.RawMessage(changedList), Taken: now, Expires: now.Add(HandshakeLife)}); err != nil {
			return err
		}
	}
	return nil
}

// changedLists are the methods of the lists that events say have changed.
func changedLists(events [][]byte) []string {
	var changed []string
	for _, raw := range events {
		method, _ := wire.String(wire.Lookup(raw, "method"))
		var lists []string
		switch method {
		case wire.NotifyToolsChanged:
			lists = []string{wire.MethodToolsList}
		case wire.NotifyPromptsChanged:
			lists = []string{wire.MethodPromptsList}
		case wire.NotifyResourcesChanged:
			lists = []string{wire.MethodResourcesList, wire.MethodResourceTemplatesList}
		}
		for _, list := range lists {
			if !slices.Contains(changed, list) {
				changed = append(changed, list)
			}
		}
	}
	return changed
}
