package serversfile_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestServerThatIsWrongCostsItselfOnly(t *testing.T) {
	const file = `{
  // the usual ones
  "mcpServers": {
    "good": {"command": "a", "args": ["//no comment", "/* nor this */", "a,]"]}, /* between */
    "weather": {"command": "a", "env": {"KEY": "${WEATHER_KEY}"}},
    "remote": {"url": "example.com/mcp", "headers": {"Authorization": "Bearer hunter2"}},
    "my server": {"command": "a"},
    "twice": {"command": "a"}, "twice": {"command": "b"},
    "both": {"args": 1, "cwd": 2},
    "off": {"command": "${NONE}", "disabled": true},
    "last": {"command": "a", "args": ["b", // behind
    ],},
  },
}
// the end`
	c, _, err := serversfile.Parse([]byte(file), "/home/ada/servers.json", nil)
	commontest.OK(t, err)
	commontest.Same(t, []string{"good", "off", "last"}, c.Names())
	good, _ := c.Server("good")
	last, _ := c.Server("last")
	commontest.Same(t, [][]string{{"//no comment", "/* nor this */", "a,]"}, {"b"}}, [][]string{good.Args, last.Args})
	var got []string
	for _, r := range c.Rejected() {
		got = append(got, r.String())
		commontest.EqualIn(t, r.Name, r.Reason(), c.Reason(r.Name))
	}
	want := []string{
		`server "weather" is not served: env "KEY": WEATHER_KEY is not set: set it, or write ${WEATHER_KEY:-default} (servers.json:5:48)`,
		`server "remote" is not served: url must be a URL that begins with https:// or http:// (servers.json:6:23)`,
		`server "my server" is not served: invalid server name "my server": begin with a letter or digit, go on with letters, digits, dot, underscore or hyphen, 64 at most (servers.json:7:5)`,
		`server "twice" is not served: duplicate key "twice": it is already on line 8 (servers.json:8:32)`,
		`server "both" is not served: missing command: give the program that starts it (servers.json:9:5, and 2 more)`,
	}
	commontest.Same(t, want, got)
	for name, reason := range map[string]string{"good": "", "none": "", "off": "it is disabled in the servers file"} {
		t.Run(name, func(t *testing.T) {
			commontest.EqualIn(t, name, reason, c.Reason(name))
		})
	}
	commontest.Equal(t, "did you mean Weather?", serversfile.Instead("wether", []string{"good", "Weather"}))
}

func TestRejectionSaysWhichValuesItLacks(t *testing.T) {
	const file = `{"mcpServers": {
	"asks": {"command": "a", "args": ["${input:my-key}", "${input:city}", "${HOME_TOWN} ${input:my-key}"]},
	"more": {"command": "a", "args": ["${input:my-key}", []]}}}`
	c, _, err := serversfile.Parse([]byte(file), "servers.json", nil)
	commontest.OK(t, err)
	got := map[string][]serversfile.Variable{}
	for _, r := range c.Rejected() {
		got[r.Name] = r.Lacks()
	}
	want := map[string][]serversfile.Variable{
		"asks": {{Name: "MY_KEY", Input: "my-key"}, {Name: "CITY", Input: "city"}, {Name: "HOME_TOWN", Secret: true}},
		"more": nil,
	}
	commontest.Same(t, want, got)
}
