package serversedit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const commented = `{
  // Ours.
  "mcpServers": {
    "a": {"command": "x", "disabled": true}, // the first
    "b": {
      "command": "y", // why
      "x-dormouse": {"idle_seconds": 60}
    },
  }
}
`

func parse(t *testing.T, text string) *serversedit.File {
	t.Helper()
	f, err := serversedit.Parse([]byte(text), "servers.json")
	commontest.OK(t, err)
	return f
}

func TestServerIsAdded(t *testing.T) {
	e := serversedit.Entry{Command: "npx", Args: []string{"-y", "c"}, Env: serversedit.Variables{{Name: "K", Value: "${K}"}, {Name: "A", Value: "<&>"}}}
	for _, text := range []string{"", commented, `{"mcpServers": {"z": {"command": "z"}}}`} {
		f := parse(t, text)
		commontest.OK(t, f.Set("c", e))
		c, _, err := serversfile.Parse(f.Text(), "servers.json", func(string) (string, bool) { return "v", true })
		commontest.OK(t, err)
		s, ok := c.Server("c")
		if diff := cmp.Diff(map[string]string{"K": "v", "A": "<&>"}, s.Env); !ok || diff != "" || strings.Join(s.Args, " ") != "-y c" {
			t.Errorf("%s became %s: %v", text, f.Text(), c.Reason("c"))
		}
		if !f.Has("c") || f.Has("d") {
			t.Error(f.Names())
		}
	}
}

func TestRemoveKeepsCommentsAndOrder(t *testing.T) {
	f := parse(t, commented)
	commontest.OK(t, f.Remove("a"))
	want := strings.Replace(commented, "    \"a\": {\"command\": \"x\", \"disabled\": true}, // the first\n", "", 1)
	commontest.Same(t, want, string(f.Text()))
}

func TestSwitchingOffAndOnLeavesTheFileAsItWas(t *testing.T) {
	for _, name := range []string{"b", "c"} {
		text := strings.Replace(commented, "    },\n  }", "    },\n    \"c\": {\"command\": \"z\"}\n  }", 1)
		f := parse(t, text)
		commontest.OK(t, f.Switch(name, false))
		c, _, err := serversfile.Parse(f.Text(), "servers.json", nil)
		if s, _ := c.Server(name); err != nil || !s.Disabled {
			t.Errorf("%v: %s", err, f.Text())
		}
		commontest.OK(t, f.Switch(name, true))
		commontest.Same(t, text, string(f.Text()))
	}
	// Another client's key stays, and ours wins.
	f := parse(t, commented)
	commontest.OK(t, f.Switch("a", true))
	want := strings.Replace(commented, `"disabled": true}`, `"disabled": true, "x-dormouse": {"enabled": true}}`, 1)
	commontest.Same(t, want, string(f.Text()))
}

// Edits of the file leave the settings that seal a server byte for byte. An import and a copy
// take them over with the same meaning.
func TestTheSealStays(t *testing.T) {
	const box = `"box": { "sealed": true, /* ours */ "network": ["api.github.com",  "*.slack.com:443", "192.168.1.10:5432",] }`
	const text = `{"mcpServers": {
  "a": {"command": "x"},
  "s": {"command": "npx", "args": ["-y", "pkg@1.0.0"], "env": {"K": "v"}, "x-dormouse": {` + box + `}}, // sealed
}}
`
	for name, edit := range map[string]func(*serversedit.File) error{
		"disable":  func(f *serversedit.File) error { return f.Switch("s", false) },
		"enable":   func(f *serversedit.File) error { return errors.Join(f.Switch("s", false), f.Switch("s", true)) },
		"variable": func(f *serversedit.File) error { return f.SetVariable("s", "K", "${K}") },
		"copy":     func(f *serversedit.File) error { return f.Copy("s", "s-2") },
		"upgrade": func(f *serversedit.File) error {
			p, ok := f.Package("s")
			if !ok || p.Version != "1.0.0" {
				return fmt.Errorf("its package is %+v", p)
			}
			return f.SetVersion("s", p, "2.0.0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := parse(t, text)
			commontest.OK(t, edit(f))
			if !strings.Contains(string(f.Text()), box) || string(f.Text()) == text && name != "enable" {
				t.Errorf("%s", f.Text())
			}
		})
	}
	src, err := serversedit.Read([]byte(text), "theirs.json", false)
	commontest.OK(t, err)
	f := parse(t, "")
	_, err = serversedit.Import(src, f, serversedit.NewEnv(nil, nil), options())
	commontest.OK(t, errors.Join(err, f.Copy("s", "s-2")))
	c, _, err := serversfile.Parse(f.Text(), "servers.json", func(string) (string, bool) { return "v", true })
	commontest.OK(t, err)
	theirs, _, err := serversfile.Parse([]byte(text), "theirs.json", nil)
	commontest.OK(t, err)
	want, _ := theirs.Server("s")
	for _, name := range []string{"s", "s-2"} {
		got, _ := c.Server(name)
		if diff := cmp.Diff(want.Box, got.Box); diff != "" || !got.Box.Sealed {
			t.Errorf("%s: %s", f.Text(), diff)
		}
	}
}

func TestFilesThatCannotBeChangedSayWhatToDo(t *testing.T) {
	for _, text := range []string{"[mcp_servers.a]\ncommand = 'x'\n", `{"name": "a", "command": "x"}`, `{"servers": {}}`} {
		if _, err := serversedit.Parse([]byte(text), "codex"); err == nil || !strings.Contains(err.Error(), "dormouse import codex") {
			t.Error(err)
		}
	}
}

func TestValueThatIsKeptIsReadBack(t *testing.T) {
	for _, value := range []string{"", "a", "a b", "a # b", "it's", `"`, `\n`, "a\nb", "a\r\nb", "a'\nb\"\\$X", " \n", "a \t\n b ", "${X}", "#", " a ", "ä", "=", "'a'"} {
		e := serversedit.NewEnv([]byte("OTHER=1 # no line end"), nil)
		name, err := e.Keep("s", "K", value)
		if err != nil || name != "K" {
			t.Fatal(name, err)
		}
		if got := serversfile.ParseEnv(e.Text()); got["K"] != value || got["OTHER"] != "1" {
			t.Errorf("%q is read as %q from %q", value, got["K"], e.Text())
		}
	}
	if _, err := serversedit.NewEnv(nil, nil).Keep("s", "K", "hunter2\x00"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

func TestAVariableThatIsSetTakesThePlaceOfItsLines(t *testing.T) {
	for before, want := range map[string]string{
		"":                        "K='a b'\n",
		"A=1":                     "A=1\nK='a b'\n",
		"# why\nK=1 # old\nZ=2\n": "# why\nK='a b'\nZ=2\n",
		"export K=\"1\n2\"\nA=1\nK='3\n4' # x\nnonsense\nB=K=5": "A=1\nK='a b'\nnonsense\nB=K=5",
	} {
		e := serversedit.NewEnv([]byte(before), nil)
		if err := e.Set("K", "a b"); err != nil || string(e.Text()) != want {
			t.Errorf("%q became %q, %v, want %q", before, e.Text(), err, want)
		}
		if value, _ := e.Lookup("K"); value != "a b" {
			t.Errorf("%q: %q", before, value)
		}
	}
	for _, name := range []string{"", "a b", "1", "A=B"} {
		if err := serversedit.NewEnv(nil, nil).Set(name, "hunter2"); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestValueNeverReplacesAnother(t *testing.T) {
	e := serversedit.NewEnv([]byte("KEY=one\n"), func(name string) (string, bool) { return "outside", name == "HOME" })
	for _, c := range []struct{ server, name, value, want string }{
		{"a", "KEY", "one", "KEY"},
		{"b", "KEY", "two", "B_KEY"},
		{"b", "KEY", "three", "B_KEY_2"},
		{"my-server", "HOME", "/x", "MY_SERVER_HOME"},
		{"a", "HOME", "outside", "HOME"},
		{"a", "odd.name", "v", "ODD_NAME"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := e.Keep(c.server, c.name, c.value)
			if err != nil || got != c.want {
				t.Errorf("%+v: %s, %v", c, got, err)
			}
		})
	}
	commontest.Equal(t, "KEY=one\nB_KEY=two\nB_KEY_2=three\nMY_SERVER_HOME=/x\nHOME=outside\nODD_NAME=v\n", string(e.Text()))
}

func TestSecretsOfAnEntryMoveAndTheRestStays(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"LOG_LEVEL", "debug", "debug"},
		{"LANG", "en_US.UTF-8", "en_US.UTF-8"},
		{"BASE", "https://api.example.com/v1", "https://api.example.com/v1"},
		{"AUTH_DISABLED", "true", "true"},
		{"API_KEY", "${env:MINE}", "${env:MINE}"},
		{"HEADER", "Bearer ${TOKEN}", "${HEADER}${TOKEN}"},
		{"API_KEY", "short", "${API_KEY}"},
		{"FOO", "hunter2", "${FOO}"},
		{"BASE", "https://ada:pw@example.com", "${BASE}"},
		{"URL", "postgres://u:pw@${HOST}/db", "${URL}${HOST}/db"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := serversedit.Entry{Command: "x", Env: serversedit.Variables{{Name: c.name, Value: c.value}}}
			env := serversedit.NewEnv(nil, nil)
			commontest.OK(t, e.KeepSecrets("s", env))
			commontest.EqualIn(t, fmt.Sprintf("%s=%s became", c.name, c.value), c.want, e.Env[0].Value)
		})
	}
}

func TestSecretsOfAURLMove(t *testing.T) {
	for url, want := range map[string]string{
		"https://example.com:8443/mcp?level=info":      "https://example.com:8443/mcp?level=info",
		"https://example.com/a:b@c":                    "https://example.com/a:b@c",
		"https://example.com/mcp?key=hunter2":          "https://example.com/mcp?key=${S_KEY}",
		"https://ada:hunter2@example.com/mcp?key=${K}": "https://ada:${S_PASSWORD}@example.com/mcp?key=${K}",
		"https://ada:${PASSWORD}@example.com/mcp":      "https://ada:${PASSWORD}@example.com/mcp",
	} {
		e := serversedit.Entry{URL: url}
		commontest.OK(t, e.KeepSecrets("s", serversedit.NewEnv(nil, nil)))
		commontest.EqualIn(t, url+" became", want, e.URL)
	}
}

func TestSecretsOfACommandLineMove(t *testing.T) {
	for line, want := range map[string]string{
		"-y @scope/pkg@1.2.3 /srv/notes --max-tokens 100":   "-y @scope/pkg@1.2.3 /srv/notes --max-tokens 100",
		"--api-key=hunter2 --verbose":                       "--api-key=${S_API_KEY} --verbose",
		"--token hunter2 x":                                 "--token ${S_TOKEN} x",
		"postgres://ada:hunter2@db/notes":                   "${S_SECRET}",
		"run -e LEVEL=info -e API_TOKEN=hunter2 -e K image": "run -e LEVEL=info -e API_TOKEN=${API_TOKEN} -e K image",
	} {
		t.Run(line, func(t *testing.T) {
			e := serversedit.Entry{Command: "x", Args: strings.Fields(line)}
			commontest.OK(t, e.KeepSecrets("s", serversedit.NewEnv(nil, nil)))
			commontest.EqualIn(t, line+" became", want, strings.Join(e.Args, " "))
		})
	}
	e := serversedit.Entry{Args: []string{"--header", "Authorization: Bearer hunter2"}, Env: serversedit.Variables{{Name: "A", Value: "old"}}}
	env := serversedit.NewEnv(nil, nil)
	if err := e.KeepSecrets("s", env); err != nil || strings.Join(e.Args, " ") != "--header ${S_SECRET}" {
		t.Error(e, err)
	}
	// A value that a person gives is not changed.
	if err := e.Keep("s", env, "A", "${b}"); err != nil || len(e.Env) != 1 || e.Env[0].Value != "${A}" || serversfile.ParseEnv(env.Text())["A"] != "${b}" {
		t.Error(e, err)
	}
}

func TestVersionIsPinnedWhereNoneIs(t *testing.T) {
	for line, want := range map[string]string{
		"npx -y @scope/pkg":               "npx -y @scope/pkg@1.2.3",
		"npx -y --package=pkg prog":       "npx -y --package=pkg@1.2.3 prog",
		"uvx mcp-server-time --tz UTC":    "uvx mcp-server-time@1.2.3 --tz UTC",
		"uvx --from pkg prog":             "uvx --from pkg==1.2.3 prog",
		"npx -y pkg@1.0.0":                "",
		"npx -y pkg@next":                 "",
		"uvx --from git+https://x/y prog": "",
		"npx -y ${PKG}":                   "",
		"node pkg":                        "",
	} {
		t.Run(line, func(t *testing.T) {
			words := strings.Fields(line)
			e := serversedit.Entry{Command: words[0], Args: words[1:]}
			p, ok := e.Package()
			if !ok || p.Version != "" {
				if want != "" {
					t.Errorf("%s is not seen", line)
				}
				return
			}
			e.Pin(p, "1.2.3")
			commontest.EqualIn(t, line+" became", want, e.Command+" "+strings.Join(e.Args, " "))
		})
	}
}

func TestEntriesOfOtherClientsAreReadAndWrongOnesQuoteNothing(t *testing.T) {
	e, name, err := serversedit.ParseEntry([]byte(`{"name":"now","type":"stdio","command":"npx","args":["-y","now",3000,true],"env":{"B":2,"A":"1","C":null,"D":1e3},"gallery":true,"enabled":false}`))
	if err != nil || name != "now" {
		t.Fatal(name, err)
	}
	want := `{"command":"npx","args":["-y","now","3000","true"],"env":{"B":"2","A":"1","C":null,"D":"1e3"},"enabled":false}`
	if got := string(e.JSON()); got != want || fmt.Sprint(e.Ignored) != "[gallery]" {
		t.Error(got, e.Ignored)
	}
	for _, text := range []string{`hunter2`, `["hunter2"]`, `{"command": 5, "x": "hunter2"}`, `{"command": "x", "env": {"K": ["hunter2"]}}`, `{"args": "hunter2"}`, `{"args": [null, "hunter2"]}`, `{"args": [["hunter2"]]}`, `{"command": "hunter2"`} {
		if _, _, err := serversedit.ParseEntry([]byte(text)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPathsInTheHomeFolderStayWhereverTheFileIs(t *testing.T) {
	e := serversedit.Entry{Command: "~/bin/x", Args: []string{"~", "~/notes", "$HOME/notes", "--dir=~/notes", "./notes"}, Cwd: "~/work", EnvFile: "$HOME/.env"}
	e.Rebase("/srv", "/etc/dormouse", func(string) bool { return true })
	want := serversedit.Entry{Command: "~/bin/x", Args: []string{"~", "~/notes", "$HOME/notes", "--dir=~/notes", "/srv/notes"}, Cwd: "~/work", EnvFile: "$HOME/.env"}
	commontest.Equal(t, string(want.JSON()), string(e.JSON()))
}
