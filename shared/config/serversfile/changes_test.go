package serversfile_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var noon = time.Date(2026, 11, 22, 12, 41, 7, 0, time.UTC)

// file parses the content of mcpServers, with what follows it.
func file(t *testing.T, servers string) *serversfile.File {
	t.Helper()
	return parse(t, `{"mcpServers":{`+servers+`}}`, map[string]string{"X": "1"})
}

func TestChangesBetweenTwoFiles(t *testing.T) {
	const a = `"a":{"command":"a","args":["1"],"env":{"K":"v"},"x-dormouse":{"startup_timeout_sec":9}}`
	for name, test := range map[string]struct{ before, after, want string }{
		"a new one":                        {a, a + `,"b":{"command":"b"}`, "+ b"},
		"a timeout":                        {a, `"a":{"command":"a","args":["1"],"env":{"K":"v"},"x-dormouse":{"startup_timeout_sec":8}}`, "~ a (timeouts)"},
		"disabled":                         {a, `"a":{"command":"a","disabled":true}`, "~ a (not served: it is disabled in the servers file)"},
		"a mistake":                        {a, `"a":{"command":"${NOT_SET}"}`, "~ a (not served: command: NOT_SET is not set: set it, or write ${NOT_SET:-default} (servers.json:1:31))"},
		"a new one with a mistake":         {`"b":{"command":"b"}`, `"b":{"command":"b"},"a":{"command":"${NOT_SET}"}`, "~ a (not served: command: NOT_SET is not set: set it, or write ${NOT_SET:-default} (servers.json:1:51))"},
		"the same mistake on another line": {`"a":{"command":"${NOT_SET}"}`, "\n" + `"a":{"command":"${NOT_SET}"}`, ""},
		"the value of a variable":          {`"a":{"command":"a","args":["1"]}`, `"a":{"command":"a","args":["${X}"]}`, ""},
		"native instead of a box":          {a, `"a":{"x-dormouse":{"native":"n"}}`, "~ a (native, command, args, timeouts, record, env)"},
		"sections of the file": {
			a + `},"x-dormouse":{"access":{"issuer":"https://one.example"},"connect":{},"limits":{},"groups":{"g":{"servers":["a"]}}`,
			a + `},"x-dormouse":{"limits":{"boxes":1},"groups":{"g":{"servers":["a"],"names":"plain"}}`,
			"~ x-dormouse.access  ~ x-dormouse.connect  ~ x-dormouse.groups  ~ x-dormouse.limits",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, changes := file(t, test.after).After(file(t, test.before), noon)
			if got := changes.String(); got != test.want || changes.None() != (test.want == "") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// A new timeout does not replace a running process. A change of anything that the process
// was started with does.
func TestDefinitionIsWhatAProcessWasStartedWith(t *testing.T) {
	of := func(more string) string {
		c := file(t, `"a":{"command":"a"`+more+`}`)
		s, _ := c.Server("a")
		back, err := serversfile.UnmarshalServer(s.Marshal())
		if err != nil || back.Definition() != s.Definition() {
			t.Errorf("%s: a box has another definition: %v", more, err)
		}
		return s.Definition()
	}
	for more, same := range map[string]bool{
		``: true, `,"x-dormouse":{"startup_timeout_sec":3}`: true, `,"x-dormouse":{"idle_seconds":9,"record":"lists","tasks":"off"}`: true,
		`,"args":["1"]`: false, `,"env":{"K":"v"}`: false, `,"x-dormouse":{"box":{"pids_limit":9}}`: false, `,"x-dormouse":{"box":{"scope":"shared"}}`: false,
	} {
		commontest.EqualIn(t, more, same, of(more) == of(""))
	}
}

func TestCatalogNamesTheFilesThatItWasReadFrom(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, "more.env", "A=1")
	write(t, folder, "outside.env", "B=1")
	write(t, folder, "servers.json", server(`"command": "a", "envFile": "more.env"}, "b": {"command": "b", "envFile": "absent.env"`))
	in := func(name string) string { return filepath.Join(folder, name) }
	c, _, err := serversfile.LoadHere(in("servers.json"), nil, in("outside.env"))
	commontest.OK(t, err)
	want := []string{in("servers.json"), in("outside.env"), in(".env"), in("more.env"), in("absent.env")}
	commontest.Same(t, want, c.Files())
}
