package bridge_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// hostile declares extensions with settings in settings, with none, and with names of
// capabilities, and experimental capabilities.
const hostile = `"extensions":{"com.example/a":{"deep":{"n":[1.50,{"c":null}]}},"com.example/empty":{},"tasks":{},"sampling":{},"listChanged":true},"experimental":{"x":{"y":9007199254740993}}`

// withTasks is hostile with the extension that Dormouse serves itself.
var withTasks = strings.Replace(hostile, `"tasks":{}`, `"io.modelcontextprotocol/tasks":{},"tasks":{}`, 1)

func from(t *testing.T, method, capabilities string) bridge.Request {
	t.Helper()
	raw := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"_meta":{"` + wire.MetaProtocolVersion + `":"2026-07-28","` + wire.MetaClientCapabilities + `":` + capabilities + `}}}`
	r, err := bridge.ReadRequest(message(t, raw))
	commontest.OK(t, err)
	return r
}

// The pairs of a client of one era and a server of the other. Within an era capabilities
// pass as they are, but for a process that is started for clients of the modern era.
func TestWhatBothErasHaveAPlaceForReachesTheOtherEnd(t *testing.T) {
	legacy := bridge.ReadLegacy(json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{` + withTasks + `}}`))
	discover := json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},` + withTasks + `},"_meta":{"mine":1.0,"` + wire.MetaServerInfo + `":{}},"more":[1.50]}`)
	handshake := json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},` + withTasks + `},"_meta":{"mine":1.0},"more":[1.50]}`)
	turn := bridge.NewTurn(from(t, "tools/call", `{"roots":{}}`), "s", nil, bridge.State{})
	turn.Take(storage.Event{Index: 1, Raw: []byte(`{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{"_meta":{"mine":1.0,"progressToken":1,"io.modelcontextprotocol/related-task":{}},"more":[1.50]}}`)})
	inputs, _, _ := bridge.ReadInputs(json.RawMessage(`{"inputRequests":{"q":{"method":"roots/list","params":{"_meta":{"mine":1.0},"more":[1.50]}}}}`))
	_, asked, fault := bridge.ReadLegacy(json.RawMessage(`{"capabilities":{"roots":{}}}`)).Ask("s", 1, 0, 0, inputs)
	if fault != nil {
		t.Fatal(fault)
	}
	const superset = `"roots":{},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}`
	of := func(raw json.RawMessage, path ...string) string { return string(wire.Lookup(raw, path...)) }
	for name, tt := range map[string]struct{ got, want string }{
		"2025 to 2026, the client":                 {of(legacy.Params("tools/call", nil, "", false), "_meta", wire.MetaClientCapabilities), `{` + hostile + `}`},
		"2025 to 2026, the server":                 {of(legacy.Initialize(discover), "capabilities"), `{"tools":{},` + hostile + `}`},
		"2026 to 2025, the client":                 {of(from(t, "tools/call", `{"sampling":{},`+withTasks+`}`).Init(), "capabilities"), `{` + superset + `,` + hostile + `}`},
		"2026 to 2025, a client that has none":     {of(from(t, "tools/call", `{"sampling":{},"extensions":{"io.modelcontextprotocol/tasks":{}},"experimental":{}}`).Init(), "capabilities"), `{` + superset + `}`},
		"2026 to 2025, the server":                 {of(bridge.Discover(handshake, false), "capabilities"), `{"tools":{},` + hostile + `}`},
		"2026 to 2026, the server, from a record":  {of(bridge.Discover(legacy.Initialize(discover), false), "capabilities"), `{"tools":{},` + hostile + `}`},
		"2026 to 2026, the server, with our tasks": {of(bridge.Discover(legacy.Initialize(discover), true), "capabilities", "extensions", "io.modelcontextprotocol/tasks"), `{}`},
		"2025 to 2026, _meta of the server":        {of(legacy.Initialize(discover), "_meta"), `{"mine":1.0}`},
		"2026 to 2025, _meta of the server":        {of(bridge.Discover(handshake, false), "_meta"), `{"mine":1.0}`},
		"2025 to 2026, more of the server":         {of(legacy.Initialize(discover), "more"), `[1.50]`},
		"2026 to 2025, more of the server":         {of(bridge.Discover(handshake, false), "more"), `[1.50]`},
		"2025 to 2026, a question":                 {of(asked[0], "params"), `{"_meta":{"mine":1.0},"more":[1.50]}`},
		"2026 to 2025, a question":                 {of(turn.Required("s"), "result", "inputRequests", "q", "params"), `{"_meta":{"mine":1.0},"more":[1.50]}`},
	} {
		commontest.SameIn(t, name, tt.want, tt.got)
	}
}

func TestClientsOfOneKindDeclareTheSame(t *testing.T) {
	kind := func(capabilities string) string { return from(t, "tools/list", capabilities).Kind() }
	base := kind(`{` + hostile + `}`)
	for name, other := range map[string]string{
		"with tasks, and what MCP itself has": `{"roots":{},"sampling":{"tools":{}},` + withTasks + `}`,
		"in another order, with white space":  `{"experimental":{"x":{"y":9007199254740993}}, "extensions":{"com.example/empty":{},"listChanged":true,"tasks":{},"sampling":{},"com.example/a":{"deep":{"n":[1.50,{"c":null}]}}}}`,
	} {
		commontest.EqualIn(t, name, base, kind(other))
	}
	for name, other := range map[string]string{
		"another setting": strings.Replace(hostile, "1.50", "1.5", 1),
		"another number":  strings.Replace(hostile, "9007199254740993", "9007199254740992", 1),
	} {
		if k := kind(`{` + other + `}`); k == base || k == "" {
			t.Errorf("%s: kind %q", name, k)
		}
	}
	for _, none := range []string{`{}`, `{"extensions":{}}`, `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{},"experimental":{}}`} {
		commontest.EqualIn(t, none+" is of kind", "", kind(none))
	}
}

func TestResultsOfExtensionsKeepTheirMembers(t *testing.T) {
	for _, tt := range []struct{ method, result, plain string }{
		{"com.example/hello", `{"resultType":"complete","ttlMs":5,"_meta":{"com.example/x":[1.50]}}`, `{"ttlMs":5,"_meta":{"com.example/x":[1.50]}}`},
		{"skills/list", `{"resultType":"complete","skills":[],"ttlMs":5,"cacheScope":"private"}`, `{"skills":[]}`},
		{"tools/list", `{"resultType":"complete","tools":[],"ttlMs":5}`, `{"tools":[]}`},
	} {
		commontest.SameIn(t, tt.method+" for a legacy client", tt.plain, string(bridge.Plain(tt.method, json.RawMessage(tt.result))))
	}
	for _, tt := range []struct{ method, result, want string }{
		{"com.example/hello", `{"n":1.50}`, `{"n":1.50,"resultType":"complete"}`},
		{"com.example/hello", `{"resultType":"partial"}`, `{"resultType":"partial"}`},
		{"tools/call", `{"resultType":"partial"}`, `{"resultType":"complete"}`},
	} {
		commontest.EqualIn(t, tt.method+" for a modern client", tt.want, string(bridge.Result(tt.method, json.RawMessage(tt.result), nil)))
	}
}

func TestNotificationsOfExtensionsGoToClientsThatDeclareSome(t *testing.T) {
	const tick = `{"jsonrpc":"2.0","method":"notifications/com.example/tick","params":{"n":1.50}}`
	for capabilities, gets := range map[string]bool{
		`{}`: false, `{"sampling":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`: false, `{"extensions":{"com.example/a":{}}}`: true, `{"experimental":{"x":{}}}`: true,
	} {
		r := from(t, "com.example/hello", capabilities)
		turn := bridge.NewTurn(r, "s", nil, bridge.State{})
		commontest.EqualIn(t, capabilities+", on its response comes", gets, string(turn.Take(storage.Event{Index: 1, Raw: []byte(tick)}).Notify) == tick)
		r.Params = json.RawMessage(`{"notifications":{}}`)
		l, err := bridge.NewListener(r, nil)
		commontest.OK(t, err)
		commontest.EqualIn(t, capabilities+", it hears", gets, strings.Contains(string(l.Notification([]byte(tick))), `"n":1.50`))
	}
}
