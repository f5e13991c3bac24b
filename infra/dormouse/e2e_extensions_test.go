//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// These declare extensions that Dormouse does not know: with settings in settings, with
// none, and with the name of a capability of MCP.
const (
	ofServers  = `{"com.example/hello":{"greetings":{"en":["hello",{"loud":[1.50,null]}]}},"com.example/empty":{},"logging":{"level":"x"},"listChanged":{"subscribe":{}},"tasks":{},"io.modelcontextprotocol/ui":{}}`
	ofClients  = `{"com.example/hello":{"a":{"b":[1.50,{"c":null}]}},"com.example/empty":{},"sampling":{"tools":{}},"tasks":{},"listChanged":{},"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}`
	ofAnother  = `{"com.example/empty":{}}`
	tickMethod = "notifications/com.example/tick"
)

// extendedServers returns a machine with the program extended in both eras, over stdio and
// as a server that others host.
func extendedServers(t *testing.T) *machine {
	t.Helper()
	file := map[string]any{}
	for era, flags := range map[string][]string{"2025": nil, "2026": {"-modern"}} {
		flags = append(flags, "-extensions", ofServers)
		file["stdio-"+era] = map[string]any{"command": extended(t), "args": flags}
		free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := free.Addr().String()
		_ = free.Close() // it is free then
		far := exec.CommandContext(t.Context(), extended(t), append(flags, "-http", address)...)
		if err := far.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = far.Wait() }) // it was killed with the test's context
		file["remote-"+era] = map[string]any{"url": "http://" + address + "/mcp", "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}}
	}
	return machineOf(t, file)
}

// speaker is a client of one era, with the extensions that it declares.
type speaker struct {
	*client
	modern     bool
	extensions string // JSON, "" for none
}

func (s speaker) capabilities() string {
	if s.extensions == "" {
		return `{}`
	}
	return `{"extensions":` + s.extensions + `}`
}

// greets returns the capabilities of the server.
func (s speaker) greets() json.RawMessage {
	s.t.Helper()
	if s.modern {
		return wire.Lookup(s.served(wire.MethodDiscover, "", "", s.capabilities()).Result, "capabilities")
	}
	ctx, cancel := s.patience()
	defer cancel()
	r, err := s.send(ctx, http.MethodPost, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+s.capabilities()+`,"clientInfo":{"name":"e","version":"1"}}}`)
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := r.response("0")
	if err != nil || m.Result == nil {
		s.t.Fatalf("initialize: %v: %s", err, m.Raw)
	}
	s.session = r.header.Get(wire.HeaderSessionID)
	r.close()
	if err := s.tell(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
		s.t.Fatal(err)
	}
	return wire.Lookup(m.Result, "capabilities")
}

// message returns a message of the client. id is "" for a notification. params are members.
func (s speaker) message(id, method, params string) string {
	if id != "" {
		id = `"id":` + id + `,`
	}
	meta := ""
	if s.modern {
		meta = fmt.Sprintf(`"_meta":{%q:%q,%q:%s}`, wire.MetaProtocolVersion, wire.V20260728, wire.MetaClientCapabilities, s.capabilities())
		if params != "" {
			meta = "," + meta
		}
	}
	return `{"jsonrpc":"2.0",` + id + `"method":"` + method + `","params":{` + params + meta + `}}`
}

// says sends a message, and returns what comes back. The response comes last.
func (s speaker) says(id, method, params string) (status int, all []wire.Message) {
	s.t.Helper()
	ctx, cancel := s.patience()
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(s.message(id, method, params)))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set(wire.HeaderProtocolVersion, wire.V20251125)
	if s.modern {
		r.Header.Set(wire.HeaderProtocolVersion, wire.V20260728)
		r.Header.Set(wire.HeaderMethod, method)
	} else {
		r.Header.Set(wire.HeaderSessionID, s.session)
	}
	if method == wire.MethodToolsCall && s.modern {
		r.Header.Set(wire.HeaderName, "seen")
	}
	stream, err := s.do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	if id == "" || s.modern {
		defer stream.close()
		all, err = stream.messages()
	} else {
		all, err = s.follow(ctx, stream, id)
	}
	if err != nil {
		s.t.Fatalf("%s: %d %v", method, stream.status, err)
	}
	return stream.status, all
}

// answer sends a request, and returns its response.
func (s speaker) answer(method, params string) wire.Message {
	s.t.Helper()
	status, all := s.says("5", method, params)
	if len(all) == 0 {
		s.t.Fatalf("%s: no answer, status %d", method, status)
	}
	return all[len(all)-1]
}

// TestE2EExtensionsReachBothEnds has a client of each version use a server of each version,
// over stdio and hosted elsewhere. All clients are the same principal.
func TestE2EExtensionsReachBothEnds(t *testing.T) {
	t.Parallel()
	m := extendedServers(t)
	m.start()
	for _, server := range []string{"stdio-2025", "stdio-2026", "remote-2025", "remote-2026"} {
		for _, modern := range []bool{false, true} {
			for name, extensions := range map[string]string{"many": ofClients, "another": ofAnother, "none": ""} {
				t.Run(fmt.Sprintf("%s, client of 2026-07-28: %t, %s", server, modern, name), func(t *testing.T) {
					c := speaker{m.in(t).client(server), modern, extensions}
					c.agrees(t)
				})
			}
		}
	}
}

func (s speaker) agrees(t *testing.T) {
	t.Helper()
	const tasks = `,"io.modelcontextprotocol/tasks":{}}` // Dormouse's own
	declared := ofServers
	if s.modern {
		declared = strings.TrimSuffix(declared, "}") + tasks
	}
	if diff := cmp.Diff(declared, string(wire.Lookup(s.greets(), "extensions"))); diff != "" {
		t.Errorf("what the client sees of the server (-want +got):\n%s", diff)
	}
	want := s.extensions
	if want == "" {
		want = "none"
	}
	if diff := cmp.Diff(want, textOf(s.answer(wire.MethodToolsCall, `"name":"seen"`))); diff != "" {
		t.Errorf("what the server sees of the client (-want +got):\n%s", diff)
	}
	status, all := s.says("6", "com.example/hello", `"name":"Ada","settings":{"n":1.50}`)
	last := all[len(all)-1]
	got := wire.Lookup(last.Result, "got")
	if status != http.StatusOK || !strings.HasPrefix(string(got), `{"name":"Ada","settings":{"n":1.50}`) {
		t.Errorf("hello: %d %s", status, last.Raw)
	}
	if own := string(wire.Lookup(last.Result, "ttlMs")) + string(wire.Lookup(last.Result, "_meta", "com.example/x")); own != `7{"deep":[1.50]}` {
		t.Errorf("hello: members of the extension: %s", last.Raw)
	}
	if said := wire.Lookup(last.Result, "resultType"); (said != nil) != s.modern {
		t.Errorf("hello: resultType %s", said)
	}
	if ticks := strings.Count(string(raws(all)), tickMethod); s.modern && (ticks > 0) != (s.extensions != "") {
		t.Errorf("the client got %d notifications of an extension", ticks)
	}
	listens := s.extensions != "" && strings.Contains(s.url, "stdio")
	var ear *stream
	if listens && s.modern {
		ear = s.listens()
		defer ear.close()
	}
	if status, _ := s.says("", "notifications/com.example/note", `"of":"`+t.Name()+`"`); status != http.StatusAccepted {
		t.Errorf("a notification: status %d", status)
	}
	if listens && !s.modern {
		ear = s.listens()
		defer ear.close()
	}
	if listens {
		for m, err := ear.next(); m.Method != tickMethod; m, err = ear.next() {
			if err != nil {
				t.Fatalf("outside of calls the client got no notification: %v", err)
			}
		}
	}
	if m := s.answer("com.example/notes", ""); !strings.Contains(string(m.Raw), t.Name()) {
		t.Errorf("the server was told %s", m.Raw)
	}
	status, all = s.says("7", "com.example/other", "")
	if last := all[len(all)-1]; !strings.Contains(string(last.Error), "extended does not know") || (status == http.StatusNotFound) != s.modern {
		t.Errorf("a method that the server does not know: %d %s", status, last.Raw)
	}
}

// listens returns an open stream of what the server says outside of calls.
func (s speaker) listens() *stream {
	s.t.Helper()
	ctx, cancel := s.patience()
	s.t.Cleanup(cancel)
	if !s.modern {
		ear, err := s.send(ctx, http.MethodGet, "", "")
		if err != nil || ear.status != http.StatusOK {
			s.t.Fatalf("GET: %v %v", ear, err)
		}
		return ear
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(s.message("8", wire.MethodListen, `"notifications":{}`)))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set(wire.HeaderProtocolVersion, wire.V20260728)
	r.Header.Set(wire.HeaderMethod, wire.MethodListen)
	ear, err := s.do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	if m, err := ear.next(); m.Method != wire.NotifyAcknowledged {
		s.t.Fatalf("listen: %v: %s", err, m.Raw)
	}
	return ear
}

func raws(all []wire.Message) (out []byte) {
	for _, m := range all {
		out = append(out, m.Raw...)
	}
	return out
}
