package bodies_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

var secret = []byte(strings.Repeat("s", 32)) //nolint:gochecknoglobals // a constant

// deployment keeps bodies of the servers of a file, and reads them.
type deployment struct {
	t      *testing.T
	lines  bytes.Buffer
	seen   []*observe.Event // by observers that come later
	keeper *bodies.Keeper
}

func deployed(t *testing.T, file string) *deployment {
	t.Helper()
	servers, _, err := serversfile.Parse([]byte(file), "servers.json", nil)
	if err != nil || len(servers.Rejected()) > 0 {
		t.Fatal(err, servers.Rejected())
	}
	d := &deployment{t: t}
	d.keeper = &bodies.Keeper{
		Server: servers.Server, Secret: secret, Out: slog.New(slog.NewJSONHandler(&d.lines, nil)),
		Hider: func(values map[string]string, marked []string) func(string) string {
			return redact.New(values, marked).Text
		},
	}
	return d
}

func (d *deployment) call(tenant, server string, stream storage.StreamID, arguments, result string) {
	d.tell(&observe.Event{
		Kind: observe.Request, Account: storage.Account{Tenant: tenant, Principal: "ada", Server: server, Session: "s"}, Tool: "pay", Outcome: observe.Done,
		Said: &observe.Said{Stream: stream, Arguments: json.RawMessage(arguments), Response: answer(result)},
	})
}

func (d *deployment) tell(e *observe.Event) {
	d.keeper.Before(func(_ context.Context, e *observe.Event) { d.seen = append(d.seen, e) })(d.t.Context(), e)
}

func (d *deployment) read(q bodies.Query) []bodies.Body {
	d.t.Helper()
	q.Limit = max(q.Limit, 10)
	r := bodies.NewReader(q, secret)
	for line := range strings.Lines(d.lines.String()) {
		var l bodies.Line
		commontest.OK(d.t, json.Unmarshal([]byte(line), &l))
		r.Add(l)
	}
	return r.Bodies()
}

// A secret of the server's variables or headers is in no body, however it is written there.
func TestSecretsAreHiddenInEveryForm(t *testing.T) {
	const token, pin, header = `tok"en/with\strange+chars`, "4711", "Bearer abcdef123456"
	file := `{"mcpServers": {
		"one": {"command": "a", "env": {"TOKEN": ` + text(token) + `, "PIN": "4711"}, "x-dormouse": {"audit": {"bodies": "auditor", "redact": ["Password"]}, "box": {"secrets": ["PIN"]}}},
		"far": {"url": "https://example.com/mcp", "headers": {"Authorization": "` + header + `"}, "x-dormouse": {"audit": {"bodies": "auditor"}}}}}`
	in := func(value any) string {
		out, err := json.Marshal(value)
		commontest.OK(t, err)
		return string(out)
	}
	escaped := func(s string) (out string) {
		for _, c := range s {
			out += fmt.Sprintf(`\u%04x`, c)
		}
		return out
	}
	code := base64.StdEncoding.EncodeToString
	for name, body := range map[string]string{
		"plain":                        in("see " + token + "!"),
		"as JSON escapes it":           in("see " + text(token)),
		"each letter escaped":          `"` + escaped(token) + `"`,
		"escapes in a text":            in("no JSON, " + escaped(token)),
		"JSON in a text":               in(in(map[string]string{"a": token})),
		"escaped JSON in a text":       in(`{"a":"` + escaped(token) + `"}`),
		"base64":                       in(code([]byte(token))),
		"base64, one byte further":     in(code([]byte("u" + token))),
		"base64, two bytes further":    in("Basic " + code([]byte("me"+token+":x"))),
		"base64 of JSON":               in(code([]byte(in(map[string]string{"a": token})))),
		"base64 of base64":             in(code([]byte(code([]byte("see " + token))))),
		"base64 in lines":              in(code([]byte(strings.Repeat("x", 100) + token))[:80] + "\n" + code([]byte(strings.Repeat("x", 100) + token))[80:]),
		"hexadecimal":                  in(hex.EncodeToString([]byte(token))),
		"a short one that is marked":   in("the pin is 4711."),
		"a number":                     `{"pin": 4711}`,
		"a member to be redacted":      `{"password": "4711 is not the only one: hunter2hunter2"}`,
		"a header of a remote server":  in("sent " + header),
		"a part of a header":           in("the key abcdef123456 is good"),
		"a member that is there twice": `{"a":` + in(token) + `,"a":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, arguments := range []bool{true, false} {
				d := deployed(t, file)
				server := "one"
				if strings.Contains(name, "header") {
					server = "far"
				}
				kept, other := body, `{"ok":true}`
				if arguments {
					d.call("acme", server, "1", kept, other)
				} else {
					d.call("acme", server, "1", other, kept)
				}
				all := d.read(bodies.Query{Role: storage.RoleAuditor})
				if len(all) != 1 || len(all[0].Arguments) == 0 || len(all[0].Result) == 0 || all[0].LeftOut != "" {
					t.Fatalf("kept is %+v", all)
				}
				read := string(all[0].Arguments) + string(all[0].Result)
				if !strings.Contains(read, "***") || !strings.Contains(read, `{"ok":true}`) {
					t.Errorf("read is %s", read)
				}
				for _, form := range []string{token, text(token), escaped(token), code([]byte(token))[:8], pin, "hunter2", "abcdef123456"} {
					if strings.Contains(read, form) || form != pin && strings.Contains(d.lines.String(), form) { // sealed text may have four digits by chance
						t.Errorf("%s has %s", read, form)
					}
				}
			}
		})
	}
}

func TestOtherBodiesStayAsTheyAre(t *testing.T) {
	d := deployed(t, `{"mcpServers": {"one": {"command": "a", "env": {"TOKEN": "secret-of-one"}}}, "x-dormouse": {"audit": {"bodies": "auditor"}}}`)
	const arguments, result = `{"b":1.50,"a":[true,null,"<é>"],"b":12345678901234567890}`, `{"content":[{"type":"text","text":"{\"x\": 1}  dGhpcyBpcyBmaW5l"}]}`
	d.call("acme", "one", "1", arguments, result)
	all := d.read(bodies.Query{Role: storage.RoleAuditor})
	if len(all) != 1 || string(all[0].Arguments) != arguments || string(all[0].Result) != result {
		t.Errorf("read is %+v", all)
	}
}

// Bodies are read by one role, for the tenant and the servers of its key. No line shows a body, and
// a line that is moved to another tenant or server opens for nobody.
func TestOnlyTheirRoleReadsBodies(t *testing.T) {
	d := deployed(t, `{"mcpServers": {"one": {"command": "a"}, "two": {"command": "a", "x-dormouse": {"audit": {"bodies": "operator"}}}, "off": {"command": "a", "x-dormouse": {"audit": {"bodies": "off"}}}}, "x-dormouse": {"audit": {"bodies": "auditor"}}}`)
	const planted = "planted-marker"
	d.call("acme", "one", "1", `{"a":"`+planted+`"}`, `{"r":"`+planted+`"}`)
	d.call("acme", "two", "2", `{"a":"`+planted+`"}`, `{}`)
	d.call("globex", "one", "3", `{"a":"of globex"}`, `{}`)
	d.call("acme", "off", "4", `{"a":"`+planted+`"}`, `{}`)
	d.call("", "one", "5", `{"a":"`+planted+`"}`, `{}`)
	if strings.Contains(d.lines.String(), planted) || strings.Contains(d.lines.String(), "of globex") {
		t.Errorf("a line shows a body: %s", d.lines.String())
	}
	for _, e := range d.seen {
		commontest.EqualIn(t, "another observer gets bodies", false, e.Said != nil)
	}
	for name, c := range map[string]struct {
		query bodies.Query
		want  []storage.StreamID
	}{
		"an auditor":                {bodies.Query{Role: storage.RoleAuditor}, []storage.StreamID{"3", "1"}},
		"an auditor of acme":        {bodies.Query{Role: storage.RoleAuditor, Tenant: "acme"}, []storage.StreamID{"1"}},
		"an operator":               {bodies.Query{Role: storage.RoleOperator}, []storage.StreamID{"2"}},
		"a viewer":                  {bodies.Query{Role: storage.RoleViewer}, nil},
		"nobody":                    {bodies.Query{}, nil},
		"of one server":             {bodies.Query{Role: storage.RoleAuditor, Server: "one", Tenant: "globex"}, []storage.StreamID{"3"}},
		"of a tool":                 {bodies.Query{Role: storage.RoleAuditor, Tool: "pay", Tenant: "acme"}, []storage.StreamID{"1"}},
		"of a time that is to come": {bodies.Query{Role: storage.RoleAuditor, Since: time.Now().Add(time.Hour)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []storage.StreamID
			for _, b := range d.read(c.query) {
				got = append(got, b.Stream)
			}
			commontest.SameIn(t, "read", c.want, got)
		})
	}
	for _, move := range [][2]string{{`"tenant":"globex"`, `"tenant":"acme"`}, {`"server":"one"`, `"server":"two"`}} {
		moved := deployed(t, `{"mcpServers": {}}`)
		moved.lines.WriteString(strings.ReplaceAll(d.lines.String(), move[0], move[1]))
		for _, b := range moved.read(bodies.Query{Role: storage.RoleAuditor}) {
			if strings.Contains(move[1], b.Server) || strings.Contains(move[0], b.Tenant) {
				t.Errorf("after %q: %+v", move, b)
			}
		}
	}
	if other := bodies.NewReader(bodies.Query{Role: storage.RoleAuditor, Limit: 9}, []byte(strings.Repeat("t", 32))); true {
		for line := range strings.Lines(d.lines.String()) {
			var l bodies.Line
			_ = json.Unmarshal([]byte(line), &l)
			other.Add(l)
		}
		commontest.EqualIn(t, "another deployment reads", 0, len(other.Bodies()))
	}
}

// The end of a call may come in another event than its arguments, before them and more than once.
func TestTheLinesOfACallAreOne(t *testing.T) {
	d := deployed(t, `{"mcpServers": {"one": {"command": "a"}}, "x-dormouse": {"audit": {"bodies": "auditor"}}}`)
	of := storage.Account{Tenant: "acme", Principal: "ada", Server: "one", Session: "s"}
	asked := func(stream storage.StreamID) {
		d.tell(&observe.Event{Kind: observe.Socket, Account: of, Tool: "pay", Outcome: observe.Open, Said: &observe.Said{Stream: stream, Arguments: json.RawMessage(`{"n":` + string(stream) + `}`)}})
	}
	frame := of
	frame.Principal = ""
	ended := func(stream storage.StreamID, why string) {
		d.tell(&observe.Event{Kind: observe.Frame, Account: frame, Ended: []observe.Ended{{Stream: stream, Why: why, Response: answer(`{"of":` + string(stream) + `}`)}}})
	}
	asked("1")
	ended("1", "")
	ended("2", "no")
	asked("2")
	d.tell(&observe.Event{Kind: observe.Request, Account: of, Said: &observe.Said{Stream: "1", Response: answer(`{"of":1}`)}}) // read again
	var got []string
	for _, b := range d.read(bodies.Query{Role: storage.RoleAuditor}) {
		got = append(got, fmt.Sprintf("%s %s %s %s %s", b.Principal, b.Tool, b.Arguments, b.Result, b.Outcome))
	}
	commontest.Same(t, []string{`ada pay {"n":2} {"of":2} failed`, `ada pay {"n":1} {"of":1} done`}, got)
	if e := d.seen[1]; e.Ended[0].Response != nil || e.Ended[0].Stream != "1" {
		t.Errorf("the next observer gets %+v", e.Ended)
	}
}

// A long body is cut, one that nobody can read is left out, and so are all bodies of a server
// whose secrets are not known where they would have to be hidden. What is written is charged.
func TestWhatIsKeptIsBounded(t *testing.T) {
	d := deployed(t, `{"mcpServers": {"one": {"command": "a"}, "aws": {"command": "a", "env": {"TOKEN": "ssm:/stack/token"}}, "them": {"command": "a", "env": {"TOKEN": "${principal:github}"}}}, "x-dormouse": {"connect": {"github": {"key": {}}}, "audit": {"bodies": "auditor"}}}`)
	d.call("acme", "one", "1", `"`+strings.Repeat(`\"`, 100<<10)+`"`, `"`+strings.Repeat("<", 300<<10)+`"`)
	d.call("acme", "aws", "2", `{"a":"value-from-aws"}`, `{}`)
	d.call("acme", "one", "4", `"`+strings.Repeat("<", 100<<10)+`"`, `"`+strings.Repeat("é", 100<<10)+`"`)
	d.call("acme", "them", "3", `{"a":"value-of-ada"}`, `{}`)
	all := d.read(bodies.Query{Role: storage.RoleAuditor})
	if len(all) != 4 {
		t.Fatalf("kept is %+v", all)
	}
	for _, b := range []bodies.Body{all[0], all[2]} {
		if b.Arguments != nil || b.Result != nil || b.LeftOut == "" || b.Tool != "pay" {
			t.Errorf("of a server with secrets from elsewhere: %+v", b)
		}
	}
	long := all[3]
	if n := len(long.Arguments); n > bodies.MaxBody || n < bodies.MaxBody/2 || long.Result != nil || !json.Valid(long.Arguments) || !strings.Contains(long.LeftOut, "arguments: all but the beginning of 204802 bytes; result: 307202 bytes") {
		t.Errorf("kept are %d and %d bytes, left out is %q", n, len(long.Result), long.LeftOut)
	}
	const most = 256 << 10 // a line of Lambda's log
	for line := range strings.Lines(d.lines.String()) {
		if len(line) > most {
			t.Errorf("a line has %d bytes", len(line))
		}
	}
	e := &observe.Event{Account: storage.Account{Tenant: "acme", Server: "one"}, Tool: "pay", Spent: &storage.Spent{}, Said: &observe.Said{Stream: "5", Arguments: json.RawMessage(`{"a":1}`)}}
	if d.tell(e); e.Spent.Units.LogGB == 0 {
		t.Error("a line is not charged")
	}
}

func text(s string) string {
	out, _ := json.Marshal(s) // a text always encodes
	return string(out)
}

func answer(result string) json.RawMessage {
	if result == "" {
		return nil
	}
	return json.RawMessage(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`)
}
