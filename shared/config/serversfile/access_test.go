package serversfile_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A mistake in a rule rejects the servers that come under the rule. The other servers
// keep their rules.
func TestRuleThatIsWrongCostsItsServerOnly(t *testing.T) {
	for rules, want := range map[string][]string{
		`"one": {"groups": ["eng"]}, "*": {"everyone": true}`: {
			`{"issuer":"https://a.example","allow":{"one":{"groups":["eng"]},"*":{"everyone":true}},"scopes":{"one":{"s":["a"]},"two":{"s":["b"]}}}`,
		},
		`"one": {"groups": ["eng"], "tools": {"a": {"group": ["x"]}}}, "*": {"everyone": true}`: {
			`{"issuer":"https://a.example","allow":{"*":{"everyone":true}},"scopes":{"two":{"s":["b"]}}}`,
			`server "one" is not served: x-dormouse.access: allow for "one": unknown field "group" (servers.json:3:40)`,
		},
		`"one": {"groups": ["eng"], "tools": {"a": {"everyone": true}, "b*c": {"everyone": true}}}, "two": {"groups": ["ops"]}`: {
			`{"issuer":"https://a.example","allow":{"two":{"groups":["ops"]}},"scopes":{"two":{"s":["b"]}}}`,
			`server "one" is not served: x-dormouse.access: allow for "one": tools: "b*c" is neither a tool nor a beginning with * behind it (servers.json:3:40)`,
		},
		`"one": {"groups": "eng"}`: {
			`{"issuer":"https://a.example","allow":{},"scopes":{"two":{"s":["b"]}}}`,
			`server "one" is not served: x-dormouse.access: allow for "one": groups cannot be a string; want an array (servers.json:3:40)`,
		},
		`"one": {"groups": ["eng"]}, "*": {}`: {
			`{"issuer":"https://a.example","allow":{"one":{"groups":["eng"]}},"scopes":{"one":{"s":["a"]}}}`,
			`server "two" is not served: x-dormouse.access: allow for "*": it matches nobody; name groups, emails or claims, or set "everyone": true (servers.json:3:68)`,
		},
	} {
		c, _, err := serversfile.Parse([]byte(`{
			"mcpServers": {"one": {"command": "a"}, "two": {"command": "a"}},
			"x-dormouse": {"access": {"allow": {`+rules+`}, "issuer": "https://a.example", "scopes": {"one": {"s": ["a"]}, "two": {"s": ["b"]}}}}}`), "servers.json", nil)
		if err != nil {
			t.Errorf("%s: %v", rules, err)
			continue
		}
		// Access keeps the order of the file.
		got := []string{strings.Replace(string(c.Access()), `{"allow"`, `{"issuer":"https://a.example","allow"`, 1)}
		got[0] = strings.Replace(got[0], `},"issuer":"https://a.example","scopes"`, `},"scopes"`, 1)
		for _, r := range c.Rejected() {
			got = append(got, r.String())
		}
		commontest.SameIn(t, rules, want, got)
	}
	_, _, err := serversfile.Parse([]byte(`{"mcpServers": {}, "x-dormouse": {"access": {"allow": {}}}}`), "servers.json", nil)
	if err == nil || !strings.Contains(err.Error(), "servers.json:1:46: x-dormouse.access: allow names no server") {
		t.Error(err)
	}
}

// An entry in access for a server that is rejected for another reason does not stop the
// other servers.
func TestAccessNamesNoServerThatIsRejected(t *testing.T) {
	c, _, err := serversfile.Parse([]byte(`{"mcpServers": {"bad": {}, "good": {"command": "a"}}, "x-dormouse": {"access": {
		"allow": {"bad": {"everyone": true}, "good": {"everyone": true}}, "audiences": {"bad": ["a"]}}}}`), "servers.json", nil)
	if want := `{"allow":{"good":{"everyone":true}},"audiences":{}}`; err != nil || string(c.Access()) != want {
		t.Errorf("%s, %v", c.Access(), err)
	}
}

func TestBoxesMayCallOnlyIfTheFileSaysSo(t *testing.T) {
	for access, want := range map[string]struct {
		may   bool
		rest  string
		wrong string
	}{
		`{"boxes": true}`:  {true, "", ""},
		`{"boxes": false}`: {false, "", ""},
		`{"boxes": true, "issuer": "https://id.example"}`: {true, `{"issuer":"https://id.example"}`, ""},
		`{"issuer": "https://id.example"}`:                {false, `{"issuer":"https://id.example"}`, ""},
		`{"boxes": "yes"}`:                                {false, "", "x-dormouse.access: boxes must be true or false"},
	} {
		c, _, err := serversfile.Parse([]byte(`{"mcpServers":{"a":{"command":"x"}},"x-dormouse":{"access":`+access+`}}`), "servers.json", nil)
		if want.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), want.wrong) {
				t.Errorf("%s: error %v", access, err)
			}
			continue
		}
		commontest.OK(t, err)
		if c.BoxesMayCall() != want.may || string(c.Access()) != want.rest {
			t.Errorf("%s: %v, and %q for tokens", access, c.BoxesMayCall(), c.Access())
		}
	}
}
