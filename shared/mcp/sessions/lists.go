package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A handshake record also keeps a server's lists: tools, prompts, resources and templates.
// The relay function stores a list when a client has asked for it and the box has
// answered. A later client gets the list without the box.
//
// The name of a part holds everything that the list may depend on: tenant, configuration,
// protocol version, the client's capabilities, and the principal. The principal is left
// out if processes do not know it ([Server].Anonymous). Such a list is only kept if its
// client has told the process nothing. Once the session's process has done more than
// answer lists ([storage.Session].Served), the name holds the session instead. With
// [Server].SameLists the operator says that tools and templates depend on neither
// principal nor session. Prompts and resources that the calls of a client have made are
// never shared.
//
// A client gets the list that its own process would give. So the record is not used while
// the session may have a running process that has done more than answer lists. Apart from
// that it is used
//
//   - if the server announces changes of the list (listChanged) or SameLists covers it,
//     until a process of the box announces a change ([storage.Box].Told), or a fresh process
//     lists otherwise ([NoteStart]). A list of a later generation is used again;
//   - otherwise, while the box sleeps and has only answered lists since the list was taken
//     ([storage.Box].Worked). A tool may have changed the list without announcing it.
//
// The record keeps no lists of a server whose lists change by themselves
// ([Server].OwnLists).

// runs reports whether the session may have a running process that has done more than
// answer lists. Only that process knows its lists.
func runs(s storage.Session, box storage.Box) bool { return s.Served && box.State != storage.Asleep }

// listPart returns the name of the part that keeps the answer to a request of a session. ok
// is false if the record does not keep the answer. Pages are not kept, because a cursor may
// mean nothing to another process.
func listPart(s storage.Session, c Caller, method string, params json.RawMessage) (part string, ok bool) {
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
	return partOf(s, method, c.Server.whose(s, same))
}

// sameList reports whether all principals get the same list.
func (s Server) sameList(method string) bool {
	return s.SameLists && (method == wire.MethodToolsList || method == wire.MethodResourceTemplatesList)
}

func isList(method string) bool {
	_, ok := wire.ListOf(method)
	return ok
}

// partOf returns the name of the part for a list. The name holds everything that a server
// knows about the session's client.
func partOf(s storage.Session, method, whose string) (part string, ok bool) {
	abilities, ok := abilitiesOf(wire.Lookup(s.Init, "capabilities"))
	return strings.Join([]string{method, s.Version, abilities, whose}, " "), ok
}

// anyone ends the name of a part that all principals share. It cannot equal a session's
// id, nor the hash of a principal, which is longer.
const anyone = "anyone"

// whose returns a name for the sessions that share a list. If same is true, all sessions
// share it. A session whose process has done more than answer lists has a list of its
// own. Otherwise the sessions of a principal share a list, or those of all principals if
// the server is Anonymous.
func (s Server) whose(of storage.Session, same bool) string {
	switch {
	case same:
		return ""
	case of.Served:
		return string(of.ID)
	case s.Anonymous:
		return anyone
	default:
		sum := sha256.Sum256([]byte(of.Principal))
		return base64.RawURLEncoding.EncodeToString(sum[:12])
	}
}

// abilitiesOf returns a name for a client's capabilities. Clients whose servers may treat
// them alike have the same name. The name holds the capabilities of MCP that change what
// a server offers, and a hash of the other capabilities that are not {}. Those are
// experimental ones and extensions, with their values. known is false if the capabilities
// are no object. Such a client gets no list from the record.
func abilitiesOf(capabilities json.RawMessage) (name string, known bool) {
	var has map[string]json.RawMessage
	if capabilities != nil && json.Unmarshal(capabilities, &has) != nil {
		return "", false
	}
	modes := map[string][]string{"roots": nil, "sampling": {"context", "tools"}, "elicitation": {"form", "url"}, "tasks": nil}
	var names []string
	others := map[string]any{}
	for ability, value := range has {
		finer, ok := modes[ability]
		if !ok {
			var other any
			if json.Unmarshal(value, &other) != nil {
				return "", false
			}
			if members, object := other.(map[string]any); !object || len(members) > 0 {
				others[ability] = other
			}
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
	if len(others) > 0 {
		sorted, err := json.Marshal(others)
		if err != nil {
			return "", false
		}
		sum := sha256.Sum256(sorted)
		names = append(names, base64.RawURLEncoding.EncodeToString(sum[:16]))
	}
	return strings.Join(names, ","), true
}

// recorded answers a request from the handshake record. If result is nil, the caller asks
// the box. part then is the name under which to keep the answer, or "" if it is not kept.
// Cost: one read for a list that the record may have, otherwise none.
func (h *Manager) recorded(ctx context.Context, c Caller, s storage.Session, box storage.Box, method string, params json.RawMessage) (result json.RawMessage, part string, err error) {
	part, ok := listPart(s, c, method, params)
	if !ok || runs(s, box) {
		return nil, part, nil
	}
	record, err := h.store.Handshake(ctx, s.Record(), part)
	if errors.Is(err, storage.NotFound) {
		if c.Server.Preparing {
			return nothingYet(s, method), "", nil
		}
		return nil, part, nil
	}
	if err != nil {
		return nil, "", err
	}
	var kept keptList
	if json.Unmarshal(record.Result, &kept) != nil || !kept.holds(method, c.Server.sameList(method), box) {
		return nil, part, nil
	}
	result, err = h.forClient(ctx, s, c, method, kept.List)
	return result, part, err
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
