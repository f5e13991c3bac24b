package serversedit_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// source reads a client's file in the way of the command import.
func source(t *testing.T, path string) serversedit.Source {
	t.Helper()
	path, err := filepath.Abs(path)
	commontest.OK(t, err)
	text, err := os.ReadFile(path)
	commontest.OK(t, err)
	src, err := serversedit.Read(text, path, strings.Contains(path, "gemini"))
	commontest.OK(t, err)
	return src
}

func options() serversedit.Options {
	return serversedit.Options{
		Folder:  "/ours",
		Exists:  func(path string) bool { return strings.HasSuffix(path, "/mine.py") || path == "/srv/notes" },
		Program: func(name string, _ []string) bool { return name != "serve" },
	}
}

// TestEveryClientsFileIsImported compares the result for each client's file with
// testdata/import: the items, the servers file and the file of variables.
func TestEveryClientsFileIsImported(t *testing.T) {
	for client, name := range map[string]string{
		"claude-desktop": "claude_desktop_config.json", "claude-code": ".mcp.json", "cursor": ".cursor/mcp.json", "vscode": ".vscode/mcp.json",
		"codex": "config.toml", "gemini": "settings.json", "windsurf": "mcp_config.json", "zed": "settings.json", "vscode-settings": "settings.json",
		"registry-npm": "server.json", "registry-pypi": "server.json", "registry-oci": "server.json", "registry-remote": "server.json",
		"bare": "servers.json", "vscode-add": "server.json",
	} {
		t.Run(client, func(t *testing.T) {
			f, env := parse(t, ""), serversedit.NewEnv(nil, func(name string) (string, bool) { return "/home/ada", name == "HOME" })
			forms := "testdata/forms"
			if slices.Contains([]string{"claude-desktop", "claude-code", "cursor", "gemini", "windsurf"}, client) {
				forms = "../../../shared/config/serversfile/testdata/forms"
			}
			src := source(t, filepath.Join(forms, client, name))
			items, err := serversedit.Import(src, f, env, options())
			commontest.OK(t, err)
			said, err := json.MarshalIndent(items, "", "  ")
			commontest.OK(t, err)
			var file bytes.Buffer // long lines are broken, and our folder is longer on some machines
			commontest.OK(t, json.Indent(&file, f.Text(), "", "  "))
			got := strings.ReplaceAll(fmt.Sprintf("%s\n%s%s", said, file.Bytes(), env.Text()), src.Folder, "/theirs")
			golden := filepath.Join("testdata", "import", client)
			if *update {
				commontest.OK(t, os.WriteFile(golden, []byte(got), 0o600))
			}
			want, err := os.ReadFile(golden)
			commontest.OK(t, err)
			commontest.Same(t, string(want), got)
			checkServed(t, f, env, items)
		})
	}
}

// checkServed checks that imported servers are served once their variables are set.
func checkServed(t *testing.T, f *serversedit.File, env *serversedit.Env, items []serversedit.Item) {
	t.Helper()
	for _, item := range items {
		set := func(name string) (string, bool) {
			for _, u := range item.Unset {
				if u.Variable == name {
					return "set", true
				}
			}
			return env.Lookup(name)
		}
		c, warnings, err := serversfile.Parse(f.Text(), "servers.json", set)
		commontest.OK(t, err)
		for _, w := range warnings {
			commontest.Contains(t, "", "is disabled", w.Text)
		}
		if why := c.Reason(item.Name); why != "" && item.Does == serversedit.Add && !strings.Contains(why, "envFile") && !strings.Contains(why, "disabled") {
			t.Errorf("%s is not served: %s", item.Name, why)
		}
	}
}

func TestImportNeverReplacesUnlessItIsTold(t *testing.T) {
	var src serversedit.Source
	for _, name := range []string{"a", "my-server", "my server!", "ping"} {
		src.Servers = append(src.Servers, serversedit.Theirs{Name: name, JSON: []byte(`{"command":"new"}`)})
	}
	for _, replace := range []bool{false, true} {
		f := parse(t, `{"mcpServers": {"a": {"command": "old"}}}`)
		o := options()
		o.Replace = replace
		items, err := serversedit.Import(src, f, serversedit.NewEnv(nil, nil), o)
		commontest.OK(t, err)
		want, does := `"old"`, serversedit.Keep
		if replace {
			want, does = `"a": {
      "command": "new"`, serversedit.Replace
		}
		if !strings.Contains(string(f.Text()), want) || items[0].Does != does {
			t.Errorf("%v: %s", items[0], f.Text())
		}
		commontest.Same(t, []string{"a", "my-server", "my-server-2", "ping-server"}, f.Names())
	}
	o := options()
	o.Only = []string{"ping", "b"}
	if _, err := serversedit.Import(src, parse(t, ""), serversedit.NewEnv(nil, nil), o); err == nil || !strings.Contains(err.Error(), "no server b") {
		t.Error(err)
	}
	o.Only = o.Only[:1]
	f := parse(t, "")
	if items, err := serversedit.Import(src, f, serversedit.NewEnv(nil, nil), o); err != nil || len(items) != 1 || len(f.Names()) != 1 {
		t.Error(items, err)
	}
}
