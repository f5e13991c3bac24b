package resourceserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func open(section, public string) error {
	s, err := resourceserver.ReadSettings([]byte(section))
	if err != nil {
		return err
	}
	s.PublicURL, s.Groups = public, map[string][]string{"/mcp": {"one", "two"}}
	sealer, err := storage.NewSealer("token", make([]byte, 32))
	if err != nil {
		return err
	}
	_, err = resourceserver.New(resourceserver.Config{Settings: s, Servers: []string{"one", "two"}, Sealer: sealer})
	return err
}

func TestSettingsThatMakeNoSenseAreRefusedWithWhatToDo(t *testing.T) {
	const issuer = `"issuer":"https://a.example"`
	for section, says := range map[string]string{
		`{}`:                                              "no issuer",
		`{"issuer":"http://a.example"}`:                   "is not https",
		`{"issuer":"https://u:p@a.example"}`:              "a user or a fragment",
		`{"isuer":"https://a.example"}`:                   "isuer",
		`{` + issuer + `,"algorithms":["RS256","HS256"]}`: "is not supported",
		`{` + issuer + `,"scope":"a\"b"}`:                 "scope",
		`{` + issuer + `,"principal":"email"}`:            "of one person to another later",
		`{` + issuer + `,"tenant":"../x"}`:                "tenant",
		`{` + issuer + `,"tenant_claim":"org"}`:           "tenant_claim needs tenants",
		`{` + issuer + `,"tenant":"a","tenant_claim":"org","tenants":{"a":"b"}}`:                                       "both set",
		`{` + issuer + `,"allow":{"three":{"everyone":true}}}`:                                                         "the servers are one, two",
		`{` + issuer + `,"allow":{"one":{}}}`:                                                                          "matches nobody",
		`{` + issuer + `,"allow":{"one":{"emails":["*@*"]}}}`:                                                          "neither an e-mail address",
		`{` + issuer + `,"allow":{"one":{"groups":[""]}}}`:                                                             "no name",
		`{` + issuer + `,"allow":{"one":{"claims":{"dept":[]}}}}`:                                                      "no values",
		`{` + issuer + `,"roles":{"user":{"everyone":true}}}`:                                                          "use viewer, auditor or operator",
		`{` + issuer + `,"roles":{"operator":{}}}`:                                                                     "roles for \"operator\": it matches nobody",
		`{` + issuer + `,"roles":{"viewer":{"everyone":true}},"clients":{"dormouse-console":{"redirect_uris":["x"]}}}`: "is the console itself",
		`{` + issuer + `,"allow":{"*":{"everyone":true,"tools":{"a*b":{"everyone":true}}}}}`:                           "neither a tool nor a beginning",
		`{` + issuer + `,"allow":{"*":{"everyone":true,"tools":{"a":{"everyone":true,"tools":{}}}}}}`:                  "tools of its own",
		`{` + issuer + `,"audiences":{"*":["a"]}}`:                                                                     "for every server",
		`{` + issuer + `,"audiences":{"/mcp":["a"],"two":["a"]}}`:                                                      "each server needs its own",
		`{` + issuer + `,"introspection":{"endpoint":"x"}}`:                                                            "introspection.endpoint",
		`{` + issuer + `,"introspection":{"endpoint":"https://a/b","client_id":"c"}}`:                                  "the client_secret of",
	} {
		err := open(section, publicURL)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "access: ") {
			t.Errorf("%s: %v, want %q", section, err, says)
		}
	}
	for public, says := range map[string]string{
		"": "is not set", "mcp.example.com": "want https", "http://mcp.example.com": "not https", "https://a.example/?x": "a query",
	} {
		if err := open(`{`+issuer+`}`, public); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("public URL %q: %v", public, err)
		}
	}
	for _, section := range []string{
		`{` + issuer + `,"audiences":{"/mcp":["api://all"],"one":["api://one"]}}`,
		`{` + issuer + `}`, `{"issuer":"http://127.0.0.1:9/realms/x"}`, `{` + issuer + `,"scope":""}`,
		`{` + issuer + `,"tenant_claim":"org","tenants":{"o-1":"acme"},"principal":"oid","claims":["email"],"algorithms":["ES256"]}`,
		`{` + issuer + `,"allow":{"*":{"everyone":true},"one":{"emails":["*@a.example"],"claims":{"d":["e"]}}},"introspection":{"endpoint":"https://a.example/i"}}`,
	} {
		for _, public := range []string{publicURL + "/", "http://127.0.0.1:8787"} {
			commontest.CheckIn(t, fmt.Sprintf("%s at %s", section, public), open(section, public))
		}
	}
}
