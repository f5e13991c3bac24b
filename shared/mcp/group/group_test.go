package group_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
)

func TestNamesSplitAsTheyWereJoined(t *testing.T) {
	n := group.NewNames([]string{"a", "a__b", "My.Server", "my-server", strings.Repeat("x", 64)})
	fits := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	seen := map[string]bool{}
	for _, member := range []string{"a", "a__b", "My.Server", "my-server", strings.Repeat("x", 64)} {
		for _, tool := range []string{"echo", "b__echo", "get.thing", "get/thing", strings.Repeat("long", 20), "ends--0123abcd", "übung"} {
			name := n.Join(member, tool)
			if !fits.MatchString(name) || seen[name] {
				t.Errorf("%s of %s is called %q", tool, member, name)
			}
			seen[name] = true
			of, rest, ok := n.Split(name)
			if !group.Short(name) && (!ok || of != member || rest != tool) {
				t.Errorf("%q is split into %q and %q, want %q and %q", name, of, rest, member, tool)
			}
		}
	}
	commontest.Equal(t, "a__echo", n.Join("a", "echo"))
}

func TestIDsKeepTheirType(t *testing.T) {
	for _, id := range []string{`"q-1"`, `7`, `-1.50`, `"7"`, `"~#"`, `""`, `"é\"<"`} {
		wrapped := group.WrapID("a.b", json.RawMessage(id))
		member, own, ok := group.UnwrapID(wrapped)
		if !ok || member != "a.b" || !wire.SameID(own, json.RawMessage(id)) {
			t.Errorf("%s became %s and then %s of %q", id, wrapped, own, member)
		}
	}
	for _, id := range []string{`7`, `"q-1"`, `"~x"`, `"a#{"`, `null`} {
		if member, own, ok := group.UnwrapID(json.RawMessage(id)); ok {
			t.Errorf("%s is taken for %s of %q", id, own, member)
		}
	}
}

func TestMessagesOfAMember(t *testing.T) {
	tests := map[string][2]string{
		"result of a tool": {
			`{"jsonrpc":"2.0","id":1.0,"result":{"content":[{"type":"resource_link","uri":"file:///a","x":1.0},{"type":"resource","resource":{"uri":"b:c","text":"uri"}},{"type":"text","text":"file:///a"}],"structuredContent":{"uri":"x"}}}`,
			`{"jsonrpc":"2.0","id":1.0,"result":{"content":[{"type":"resource_link","uri":"dormouse://m/file:///a","x":1.0},{"type":"resource","resource":{"uri":"dormouse://m/b:c","text":"uri"}},{"type":"text","text":"file:///a"}],"structuredContent":{"uri":"x"}}}`,
		},
		"prompt": {
			`{"id":1,"result":{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a:b"}}}]}}`,
			`{"id":1,"result":{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"dormouse://m/a:b"}}}]}}`,
		},
		"resource":        {`{"id":1,"result":{"contents":[{"uri":"a:b","text":""}]}}`, `{"id":1,"result":{"contents":[{"uri":"dormouse://m/a:b","text":""}]}}`},
		"question":        {`{"id":5,"method":"elicitation/create","params":{"message":"x","_meta":{"progressToken":"p"}}}`, `{"id":"m#5","method":"elicitation/create","params":{"message":"x","_meta":{"progressToken":"m~p"}}}`},
		"progress":        {`{"method":"notifications/progress","params":{"progressToken":"mine","progress":1}}`, `{"method":"notifications/progress","params":{"progressToken":"mine","progress":1}}`},
		"task, 2026":      {`{"id":1,"result":{"resultType":"task","taskId":"t"}}`, `{"id":1,"result":{"resultType":"task","taskId":"m~t"}}`},
		"error":           {`{"id":1,"error":{"code":1,"message":"file:///a"}}`, `{"id":1,"error":{"code":1,"message":"file:///a"}}`},
		"cancelled":       {`{"method":"notifications/cancelled","params":{"requestId":5}}`, `{"method":"notifications/cancelled","params":{"requestId":"m#5"}}`},
		"batch":           {`[{"id":1,"result":{}},{"id":2,"result":{"contents":[{"uri":"a:b"}]}}]`, `[{"id":1,"result":{}},{"id":2,"result":{"contents":[{"uri":"dormouse://m/a:b"}]}}]`},
		"acknowledged":    {`{"method":"notifications/subscriptions/acknowledged","params":{"notifications":{"resourceSubscriptions":["a:b"]}}}`, `{"method":"notifications/subscriptions/acknowledged","params":{"notifications":{"resourceSubscriptions":["dormouse://m/a:b"]}}}`},
		"finished task":   {`{"id":1,"result":{"taskId":"t","status":"completed","result":{"content":[{"type":"resource_link","uri":"a:b"}]}}}`, `{"id":1,"result":{"taskId":"m~t","status":"completed","result":{"content":[{"type":"resource_link","uri":"dormouse://m/a:b"}]}}}`},
		"app of a result": {`{"id":1,"result":{"content":[],"_meta":{"ui":{"resourceUri":"ui://w/a.html","x":1.0},"ui/resourceUri":"ui:\/\/w\/a.html","k":["ui://b",{"file":"file:///a"}]}}}`, `{"id":1,"result":{"content":[],"_meta":{"ui":{"resourceUri":"ui://m/w/a.html","x":1.0},"ui/resourceUri":"ui://m/w/a.html","k":["ui://m/b",{"file":"file:///a"}]}}}`},
		"app":             {`{"id":1,"result":{"contents":[{"uri":"ui://w/a.html","_meta":{"ui":{"csp":{"connectDomains":["https://a"]}}},"text":"ui://w"}]}}`, `{"id":1,"result":{"contents":[{"uri":"ui://m/w/a.html","_meta":{"ui":{"csp":{"connectDomains":["https://a"]}}},"text":"ui://w"}]}}`},
		"skill":           {`{"id":1,"result":{"skill":{"uri":"skill://s/SKILL.md","frontmatter":{"uri":"x"},"resources":[{"uri":"skill://s/SKILL.md","size":1}]}}}`, `{"id":1,"result":{"skill":{"uri":"skill://m/s/SKILL.md","frontmatter":{"uri":"x"},"resources":[{"uri":"skill://m/s/SKILL.md","size":1}]}}}`},
	}
	for name, tt := range tests {
		commontest.EqualIn(t, name, tt[1], string(group.View{Member: "m"}.Message([]byte(tt[0]))))
	}
}

func TestMessagesForAMember(t *testing.T) {
	n := group.NewNames([]string{"m", "other"})
	tests := map[string][2]string{
		"tool":       {`"id":1.0,"method":"tools/call","params":{"arguments":{"name":"m__x"},"name":"m__do it"}`, `"id":1.0,"method":"tools/call","params":{"arguments":{"name":"m__x"},"name":"do it"}`},
		"prompt":     {`"id":1,"method":"prompts/get","params":{"name":"m__p"}`, `"id":1,"method":"prompts/get","params":{"name":"p"}`},
		"read":       {`"id":1,"method":"resources/read","params":{"uri":"dormouse://m/file:///a?b#c"}`, `"id":1,"method":"resources/read","params":{"uri":"file:///a?b#c"}`},
		"completion": {`"id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"m__p"},"argument":{}}`, `"id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"p"},"argument":{}}`},
		"template":   {`"id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"dormouse://m/a:{b}"}}`, `"id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"a:{b}"}}`},
		"answer":     {`"id":"m#5","result":{"id":"m#5"}`, `"id":5,"result":{"id":"m#5"}`},
		"task":       {`"id":1,"method":"tasks/get","params":{"taskId":"m~t"}`, `"id":1,"method":"tasks/get","params":{"taskId":"t"}`},
		"progress":   {`"method":"notifications/progress","params":{"progressToken":"m~p","progress":1}`, `"method":"notifications/progress","params":{"progressToken":"p","progress":1}`},
		"extension":  {`"id":1,"method":"x/y","params":{"uri":"dormouse://m/file:///a"}`, `"id":1,"method":"x/y","params":{"uri":"file:///a"}`},
	}
	for name, tt := range tests {
		m, err := wire.Parse([]byte(`{"jsonrpc":"2.0",` + tt[0] + `}`))
		commontest.OKIn(t, name, err)
		target := n.Find(m)
		got, err := target.Message(m)
		if want := `{"jsonrpc":"2.0",` + tt[1] + `}`; err != nil || target.Member != "m" || string(got.Raw) != want {
			t.Errorf("%s: for %q:\n got %s, %v\nwant %s", name, target.Member, got.Raw, err, want)
		}
	}
}

func TestNamesThatClashKeepTheirPrefix(t *testing.T) {
	n := group.NewNames([]string{"a", "b"})
	lists := []group.List{
		{Member: "a", Result: json.RawMessage(`{"tools":[{"name":"echo"},{"name":"only","n":1.0}]}`)},
		{Member: "b", Result: json.RawMessage(`{"tools":[{"name":"echo"}]}`)},
		{Member: "c"},
	}
	got := string(group.Result(wire.MethodToolsList, n.Merge(wire.MethodToolsList, true, lists...)))
	commontest.Equal(t, `{"tools":[{"name":"a__echo"},{"name":"only","n":1.0},{"name":"b__echo"}]}`, got)
}

func TestSearchRanksNamesBeforeDescriptions(t *testing.T) {
	n := group.NewNames([]string{"git", "mail"})
	tools := n.Merge(wire.MethodToolsList, false,
		group.List{Member: "git", Result: json.RawMessage(`{"tools":[{"name":"createBranch","description":"makes a branch"},{"name":"log","description":"shows commits of a branch"}]}`)},
		group.List{Member: "mail", Result: json.RawMessage(`{"tools":[{"name":"send","description":"sends mail"}]}`)})
	names := func(query string, limit int) (names []string) {
		for _, e := range group.Search(tools, query, limit) {
			names = append(names, e.Name)
		}
		return names
	}
	for query, want := range map[string][]string{
		"branch": {"git__createBranch", "git__log"}, "Create a BRANCH": {"git__createBranch", "git__log"}, "mails": {"mail__send"}, "nothing": nil,
		"": {"git__createBranch", "git__log", "mail__send"},
	} {
		commontest.SameIn(t, query, want, names(query, 9))
	}
	commontest.SameIn(t, "the first is", []string{"git__createBranch"}, names("branch", 1))
}

func TestGreetingJoinsMembers(t *testing.T) {
	got := string(group.Greeting(group.NewNames([]string{"a", "b"}), false,
		group.List{Member: "a", Result: json.RawMessage(`{"capabilities":{"tools":{},"resources":{"subscribe":false}},"instructions":"be kind"}`)},
		group.List{Member: "b", Result: json.RawMessage(`{"capabilities":{"logging":{},"resources":{"subscribe":true},"experimental":{"x":{}}}}`)}))
	want := `{"capabilities":{"logging":{},"resources":{"listChanged":true,"subscribe":true},"tools":{"listChanged":true}},"serverInfo":{"name":"dormouse","version":"1"},"instructions":"# a (names begin with a__)\n\nbe kind"}`
	commontest.Equal(t, want, got)
	got = string(group.Greeting(group.NewNames([]string{"a"}), true, group.List{Member: "a", Result: json.RawMessage(`{"instructions":"be kind"}`)}))
	commontest.Contains(t, "of plain names", "# a (names may begin with a__)", got)
}

// Each URI of a group is that of one member's resource, and begins as clients expect it.
func TestURIsUnwrapAsTheyWereWrapped(t *testing.T) {
	seen := map[string]bool{}
	for _, member := range []string{"a", "a.b", "ui", "skill"} {
		for _, uri := range []string{"ui://w/a.html", "ui://a/b", "ui://", "ui://{x}", "skill://s/SKILL.md", "file:///a", "a:b", "", "dormouse://a/ui://b", "UI://w"} {
			wrapped := group.WrapURI(member, uri)
			of, own, ok := group.UnwrapURI(wrapped)
			if !ok || of != member || own != uri || seen[wrapped] {
				t.Errorf("%s of %s became %s, and then %s of %s", uri, member, wrapped, own, of)
			}
			seen[wrapped] = true
		}
	}
	commontest.Equal(t, "ui://app/widget/a.html", group.WrapURI("app", "ui://widget/a.html"))
}

func TestGreetingHasTheExtensionsOfAllMembers(t *testing.T) {
	n := group.NewNames([]string{"a", "b"})
	greeting := func(capabilities string) group.List {
		return group.List{Member: "a", Result: json.RawMessage(`{"capabilities":{` + capabilities + `}}`)}
	}
	got := group.Greeting(n, false, greeting(`"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html"]},"io.modelcontextprotocol/tasks":{}}`),
		greeting(`"extensions":{"io.modelcontextprotocol/skills":{"directoryRead":true}}`), greeting(`"extensions":{"io.modelcontextprotocol/skills":{}}`))
	commontest.Equal(t, `{"io.modelcontextprotocol/skills":{"directoryRead":true},"io.modelcontextprotocol/ui":{"mimeTypes":["text/html"]}}`, string(wire.Lookup(got, "capabilities", "extensions")))
	if got = group.Greeting(n, false, greeting(`"extensions":{"io.modelcontextprotocol/tasks":{}}`)); wire.Lookup(got, "capabilities", "extensions") != nil {
		t.Errorf("got %s", got)
	}
}

func TestOwnersOfAMethod(t *testing.T) {
	member := func(name string, extensions ...string) group.List {
		text := ""
		for i, e := range extensions {
			if i > 0 {
				text += ","
			}
			text += `"` + e + `":{}`
		}
		return group.List{Member: name, Result: json.RawMessage(`{"capabilities":{"extensions":{` + text + `}}}`)}
	}
	members := []group.List{
		member("plain"), member("skills", "io.modelcontextprotocol/skills"), member("both", "io.modelcontextprotocol/skills", "com.example/hello"),
		member("tasks", "io.modelcontextprotocol/tasks"), member("other", "org.other/hello"),
	}
	for method, want := range map[string]string{
		"skills/get": "skills both", "resources/directory/read": "skills both", "com.example/hello": "both", "com.example/bye": "both",
		"hello/say": "both other", "of/nobody": "both other", "tasks/x": "both other",
	} {
		commontest.EqualIn(t, method, want, strings.Join(group.Owners(method, members...), " "))
	}
	commontest.Same(t, []string{"new"}, group.Owners("x/y", member("plain"), group.List{Member: "new"}))
}

func TestTemplatesMakeURIs(t *testing.T) {
	for uri, template := range map[string]string{"test://t/5/data": "test://t/{id}/data", "file:///a/b": "file:///{path}", "a:b": "a:b", "1-2": "{a}-{b}"} {
		commontest.EqualIn(t, template+" makes "+uri, true, group.Makes(template, uri))
	}
	for uri, template := range map[string]string{"test://t/5/date": "test://t/{id}/data", "a:bc": "a:b", "12": "{a}-{b}"} {
		commontest.EqualIn(t, template+" makes "+uri, false, group.Makes(template, uri))
	}
}
