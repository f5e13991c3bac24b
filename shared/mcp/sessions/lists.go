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
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// A handshake record also keeps a server's lists: tools, prompts, resources and resource templates.
// When the box answers a request for a list, the instance that writes the answer to the log also
// stores the list. A later client gets the list without the box.
//
// The name of a record and of a part together hold everything that the list may depend on: tenant,
// configuration of the server, protocol version, the client's capabilities, and the principal. If
// processes do not know the principal ([Server.Anonymous]), the name lacks it, and a list is only kept
// if its client has answered no question of the process. Once the session's process has done more than
// answer lists ([storage.Session.Served]), the name holds the session in place of the principal. With
// [Server.SameLists] the operator says that tools and templates depend on neither principal nor session.
//
// A client must get the list that its own process would give. The record is not used while the
// session may have a running process that has done more than answer lists. At other times it is
// used
//
//   - if the server announces changes of the list (listChanged) or SameLists covers the list:
//     until a process of the box announces a change ([storage.Box.Told]), or a fresh process
//     has other lists ([NoteStart]). From then on only a list of a later generation is used;
//   - if neither: while the box sleeps and has only answered lists since the list was taken
//     ([storage.Box.Worked]), because a tool may have changed the list without announcing it.
//
// The record keeps no lists of a server whose lists change by themselves ([Server.OwnLists]).

// listPart returns the key, within the handshake record, of the list that a request asks for. ok is
// false if the record does not keep the answer, or the client's capabilities cannot be read. A record
// keeps no later pages of a list, because a cursor may mean nothing to another process.
func listPart(s storage.Session, c Caller, method string, params json.RawMessage) (part string, ok bool) {
	if _, list := wire.ListOf(method); !list || !c.Server.Record || c.Server.OwnLists || s.Digest != c.Server.Digest {
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
	abilities, ok := abilitiesOf(wire.Lookup(s.Init, "capabilities"))
	return strings.Join([]string{method, s.Version, abilities, c.Server.whose(s, method)}, " "), ok
}

// sameList reports whether all principals get the same list from this method.
func (s Server) sameList(method string) bool {
	return s.SameLists && (method == wire.MethodToolsList || method == wire.MethodResourceTemplatesList)
}

// anyone is the result of [Server.whose] for a list that all principals share. It equals no id of a
// session and no hash of a principal, which are longer.
const anyone = "anyone"

// whose returns a name for the set of sessions that get the same list from a method as the given one:
//
//   - "" for all sessions, if sameList is true;
//   - the session's id for that session alone, if its process has done more than answer lists;
//   - [anyone] for the sessions of all principals, if the server is Anonymous;
//   - a hash of the principal for the sessions of that principal.
func (s Server) whose(session storage.Session, method string) string {
	switch {
	case s.sameList(method):
		return ""
	case session.Served:
		return string(session.ID)
	case s.Anonymous:
		return anyone
	default:
		sum := sha256.Sum256([]byte(session.Principal))
		return base64.RawURLEncoding.EncodeToString(sum[:12])
	}
}

// abilitiesOf returns a name for a client's capabilities. Clients that a server cannot treat
// differently have the same name. The name has the capabilities of MCP that may change what a
// server offers, and a hash of all others that are not {}: experimental ones and extensions, with
// their values. known is false if the capabilities are no JSON object.
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

// recorded answers a request for a list from the handshake record. If result is nil, the caller must ask
// the box. part is the key under which the record keeps the box's answer, "" if it does not keep it. Cost:
// one read for a list that the record may have, otherwise none.
func (u *use) recorded(ctx context.Context, method string, params json.RawMessage) (result json.RawMessage, part string, err error) {
	c, s, box := u.caller, u.session, u.box
	part, ok := listPart(s, c, method, params)
	if runs := s.Served && box.State != storage.Asleep; !ok || runs { // the process may have changed its list
		return nil, part, nil
	}
	record, err := u.manager.store.Handshake(ctx, s.Record(), part)
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
	if json.Unmarshal(record.Result, &kept) != nil || !kept.holds(c.Server, method, box) {
		return nil, part, nil
	}
	result, err = u.forClient(ctx, c, method, kept.List)
	return result, part, err
}

// plainList returns a list without the JSON fields that only modern clients know.
func plainList(list json.RawMessage) json.RawMessage {
	if wire.Lookup(list, "resultType") == nil {
		return list
	}
	return bridge.Plain(wire.MethodToolsList, list)
}
