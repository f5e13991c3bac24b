package box

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// takeLists is a server with lists of some pages. It says whether it has taken the message.
func (f *fake) takeLists(m wire.Message) bool {
	cursor, _ := wire.String(wire.Lookup(m.Params, "cursor"))
	version, _ := wire.String(wire.Lookup(m.Params, "protocolVersion"))
	switch m.Method {
	case wire.MethodInitialize:
		answer(m.ID, `{"protocolVersion":"`+version+`","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{}},"serverInfo":{"name":"fake","version":"1"}}`)
	case wire.MethodToolsList:
		switch {
		case cursor == "":
			answer(m.ID, `{"tools":[{"name":"a"}],"nextCursor":"2"}`)
		case f.how == "lists more":
			answer(m.ID, `{"tools":[{"name":"b"},{"name":"c"}]}`)
		default:
			answer(m.ID, `{"tools":[{"name":"b"}]}`)
		}
	case wire.MethodResourcesList:
		if f.how == "lists and fails" {
			say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeInternal, Message: "not now"})))
			return true
		}
		answer(m.ID, `{"resources":[]}`)
	case wire.MethodPromptsList:
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeMethodNotFound, Message: "no"})))
	default:
		return false
	}
	return true
}

func surveys(s *Server) { s.Lists = true }

// told returns what the box says of a fresh process of a session.
func (r *rig) told(session, init string) toldLists {
	r.t.Helper()
	r.as(session, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, func(d *Delivery) { d.Ticket, d.Principal, d.Init = "", "p-"+session, json.RawMessage(init) })
	return find(r.t, r.recorder, "the lists of "+session, func(l toldLists) bool { return l.session == session })
}

const (
	plainClient = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a","version":"1"}}`
	richClient  = `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"elicitation":{}},"clientInfo":{"name":"b","version":"1"}}`
	sameClient  = `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{}},"clientInfo":{"name":"c","version":"2"}}`
)

func TestFreshProcessIsAskedForItsLists(t *testing.T) {
	r := newRig(t, "lists", surveys)
	plain, rich, same := r.told("1", plainClient), r.told("2", richClient), r.told("3", sameClient)
	var hashes map[string]string
	commontest.OK(t, json.Unmarshal(plain.Fingerprint, &hashes))
	commontest.SameIn(t, "lists", []string{wire.MethodResourcesList, wire.MethodResourceTemplatesList, wire.MethodToolsList}, slices.Sorted(maps.Keys(hashes)))
	if plain.ticket != "" || plain.Own || string(plain.Fingerprint) != string(rich.Fingerprint) {
		t.Errorf("%+v and %+v", plain, rich)
	}
	if plain.Kind == rich.Kind || rich.Kind != same.Kind {
		t.Errorf("the kinds of clients are %s, %s and %s", plain.Kind, rich.Kind, same.Kind)
	}
	if more := newRig(t, "lists more", surveys).told("1", plainClient); string(more.Fingerprint) == string(plain.Fingerprint) || more.Kind != plain.Kind {
		t.Error("a tool more on the second page makes no difference")
	}
}

func TestProcessThatKnowsItsPrincipalIsComparedWithItsOwn(t *testing.T) {
	r := newRig(t, "lists", surveys, func(s *Server) { s.Scope = ScopePrincipal })
	one, two := r.told("1", plainClient), r.told("2", plainClient)
	if !one.Own || !two.Own || one.Kind == two.Kind {
		t.Errorf("%+v and %+v", one, two)
	}
}

func TestProcessThatIsNotComparedSaysNothing(t *testing.T) {
	for name, r := range map[string]*rig{"fails": newRig(t, "lists and fails", surveys), "is not asked": newRig(t, "lists")} {
		t.Run(name, func(t *testing.T) {
			r.result(r.deliver(`{"jsonrpc":"2.0","id":1,"method":"resources/templates/list"}`))
			seen := string(r.result(r.deliverIn("s", "seen")))
			commontest.EqualIn(t, name, name == "fails", strings.Contains(seen, wire.MethodToolsList))
			for _, v := range r.left() {
				if l, ok := v.(toldLists); ok {
					t.Errorf("%s: %+v", name, l)
				}
			}
		})
	}
}

func TestStatelessProcessIsAskedForItsListsInItsOwnProtocol(t *testing.T) {
	r := newRig(t, "modern", surveys)
	r.told("s", plainClient)
	commontest.Contains(t, "it has", `"method":"tools/list","params":{"_meta":{`, string(r.result(r.deliver(`{"jsonrpc":"2.0","id":2,"method":"test/seen"}`))))
}
