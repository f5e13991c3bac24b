package bridge_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

const annotatedTools = `{"tools":[
	{"name":"query","inputSchema":{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"limit":{"type":"integer","x-mcp-header":"limit"},
		"where":{"type":"object","properties":{"dry":{"type":"boolean","x-mcp-header":"Dry-Run"}}},
		"list":{"type":"array","items":{"type":"object","properties":{"x":{"type":"string","x-mcp-header":"Item"}}}}}}},
	{"name":"plain","inputSchema":{"type":"object","properties":{"region":{"type":"string"}}}},
	{"name":"twice","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}},
	{"name":"number","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}},
	{"name":"blank","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":""}}}},
	{"name":"odd","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}}]}`

func TestHeaderParamsAreThoseOfToolsThatKeepTheRules(t *testing.T) {
	for list, want := range map[string]string{
		annotatedTools:     `{"query":{"dry-run":["where","dry"],"limit":["limit"],"region":["region"]}}`,
		`{"tools":[1,{}]}`: "",
		`{"tools":[{"name":"t","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}],"nextCursor":"2"}`: "",
	} {
		commontest.EqualIn(t, list, want, string(bridge.HeaderParams([]byte(list))))
	}
}

func TestParamsAreComparedWithArguments(t *testing.T) {
	known := bridge.HeaderParams([]byte(annotatedTools))
	for name, c := range map[string]struct {
		tool, arguments string
		headers         []string // name, value, ...
		ok              bool
	}{
		"all equal":                 {"query", `{"region":"eu","limit":42,"where":{"dry":true}}`, []string{"Region", "eu", "LIMIT", "42", "dry-run", "true"}, true},
		"null is nothing":           {"query", `{"region":null}`, nil, true},
		"base64":                    {"query", `{"region":"zürich"}`, []string{"Region", "=?base64?esO8cmljaA==?="}, true},
		"a big number":              {"query", `{"limit":9007199254740993}`, []string{"limit", "9007199254740993"}, true},
		"tool nobody knows":         {"other", `{"region":"eu"}`, nil, true},
		"another case":              {"query", `{"region":"eu"}`, []string{"Region", "EU"}, false},
		"another value":             {"query", `{"region":"eu"}`, []string{"Region", "us"}, false},
		"another big number":        {"query", `{"limit":9007199254740993}`, []string{"limit", "9007199254740992"}, false},
		"missing":                   {"query", `{"region":"eu"}`, nil, false},
		"without the argument":      {"query", `{}`, []string{"Region", "eu"}, false},
		"twice":                     {"query", `{"region":"eu"}`, []string{"Region", "eu", "Region", "eu"}, false},
		"an exponent is as written": {"query", `{"limit":1e999999999}`, []string{"limit", "1e999999999"}, true},
	} {
		params := `{"name":"` + c.tool + `",`
		if c.arguments != "" {
			params += `"arguments":` + c.arguments + `,`
		}
		r := request(t, "tools/call", params+meta(``)+`}`)
		header := http.Header{}
		for i := 0; i < len(c.headers); i += 2 {
			header.Add(wire.HeaderParamPrefix+c.headers[i], c.headers[i+1])
		}
		err := bridge.CheckParams(known, r, header.Values)
		var fault *wire.Error
		if c.ok != (err == nil) || err != nil && (!errors.As(err, &fault) || fault.Code != wire.CodeHeaderMismatch) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	r := request(t, "tools/call", `{"name":"query","arguments":{"region":"eu"},`+meta(``)+`}`)
	commontest.CheckIn(t, "nothing is known", bridge.CheckParams(nil, r, http.Header{}.Values))
}
