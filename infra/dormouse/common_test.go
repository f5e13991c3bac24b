package dormouse

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestUnknownNamesAreAnsweredWithTheNearest(t *testing.T) {
	for name, want := range map[string]string{
		"gihub":   "no server gihub: did you mean github?",
		"GITHUB":  "no server GITHUB: did you mean github?",
		"weather": "no server weather: there are github, linear",
	} {
		t.Run(name, func(t *testing.T) {
			commontest.Equal(t, want, unknown("server", name, []string{"github", "linear"}).Error())
		})
	}
	if got, want := unknown("tool", "echo", nil).Error(), "no tool echo: there are none"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// People paste the URL that a client has.
func TestURLOfAClientNamesItsEndpoint(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"http://127.0.0.1:9800":                            "http://127.0.0.1:9800",
		"http://127.0.0.1:9800/mcp":                        "http://127.0.0.1:9800",
		"https://mcp.example.com/one/mcp":                  "https://mcp.example.com",
		"https://mcp.example.com/g/team/mcp/":              "https://mcp.example.com",
		"https://x.execute-api.r.amazonaws.com/v1":         "https://x.execute-api.r.amazonaws.com/v1",
		"https://x.execute-api.r.amazonaws.com/v1/one/mcp": "https://x.execute-api.r.amazonaws.com/v1",
		"https://x.example.com/prod/one/more/mcp":          "https://x.example.com/prod/one/more/mcp",
	} {
		t.Run(url, func(t *testing.T) {
			commontest.EqualIn(t, url, want, address(url))
			c, err := target{urlFlag: urlFlag{URL: url}}.open(t.Context())
			if err != nil || c.base != want || c.where != want {
				t.Errorf("%s: %v, the client calls %q and names %q", url, err, c.base, c.where)
			}
		})
	}
}

func TestDataFolderOnTheCommandLineWinsOverAURLOfTheEnvironment(t *testing.T) {
	if c := (target{Data: "d", urlFlag: urlFlag{URL: "https://x"}}); c.remote() || c.folder() != "d" {
		t.Errorf("%+v is remote", c)
	}
	if c := (target{urlFlag: urlFlag{URL: "https://x"}}); !c.remote() {
		t.Errorf("%+v is a folder", c)
	}
	if c := (target{}); c.remote() || c.folder() != defaultData {
		t.Errorf("%+v: folder %s", c, c.folder())
	}
}
