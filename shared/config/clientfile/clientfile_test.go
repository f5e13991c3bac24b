package clientfile_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/clientfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// forms are the clients whose files differ in kind. The files of the others are like that of
// Claude Code or of Zed.
var forms = []string{"claude-code", "codex", "goose", "opencode", "zed"}

// theirs returns a client, and its file in the state in which its owner keeps it. Most files have
// a server "mine" that the client starts or reaches itself. Everything that Merge must keep
// contains KEEP.
func theirs(t *testing.T, name string) (clientfile.Client, []byte) {
	t.Helper()
	client, ok := clientfile.Find(name)
	commontest.Equal(t, true, ok)
	text, err := os.ReadFile(filepath.Join("testdata", name, "before"))
	commontest.OK(t, err)
	return client, text
}

func servers() []clientfile.Server {
	return []clientfile.Server{
		{Name: "mine", URL: "http://127.0.0.1:8787/mine/mcp"},
		{Name: "new.one", URL: "http://127.0.0.1:8787/new.one/mcp", Key: "dm_aaaaaaaa_b"},
	}
}

// TestMergeKeepsAllElseOfEveryClientsFile compares each result with
// testdata/CLIENT/after.
func TestMergeKeepsAllElseOfEveryClientsFile(t *testing.T) {
	for _, name := range forms {
		t.Run(name, func(t *testing.T) {
			c, before := theirs(t, name)
			got, err := c.Merge(before, servers())
			commontest.OK(t, err)
			golden := filepath.Join("testdata", name, "after")
			if *update {
				commontest.OK(t, os.WriteFile(golden, got, 0o600))
			}
			want, err := os.ReadFile(golden)
			commontest.OK(t, err)
			commontest.Same(t, string(want), string(got))
			if kept, had := strings.Count(string(got), "KEEP"), strings.Count(string(before), "KEEP"); kept != had || had == 0 {
				t.Errorf("%d of %d things to keep are there", kept, had)
			}
			again, err := c.Merge(got, servers())
			commontest.OK(t, err)
			commontest.SameIn(t, "a second time", string(got), string(again))
			fresh, err := c.Merge(nil, servers()[1:])
			if err != nil || !strings.Contains(string(fresh), "8787/new.one/mcp") || !strings.Contains(string(fresh), "dm_aaaaaaaa_b") {
				t.Errorf("a new file: %s, %v", fresh, err)
			}
		})
	}
}

func TestMergeSaysWhatIsInTheWay(t *testing.T) {
	for _, c := range []struct{ client, text, want string }{
		{"cursor", `{"mcpServers": hunter2}`, "the file is not JSON"},
		{"cursor", `{"mcpServers": ["hunter2"]}`, "mcpServers is not an object"},
		{"codex", "mcp_servers = { mine = { url = 'hunter2' } }", "cannot change the form in which the file has it"},
		{"codex", "[mcp_servers.mine]\ncommand = 'x'\nargs = [\n  'hunter2',\n]\n", "cannot change the form in which the file has it"},
		{"goose", "extensions: {mine: {uri: hunter2}}", "not one to a line"},
	} {
		client, _ := clientfile.Find(c.client)
		_, err := client.Merge([]byte(c.text), servers()[:1])
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "paste it by hand") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}

// TestPastes compares the pastes of each client with testdata/pastes.
func TestPastes(t *testing.T) {
	var got strings.Builder
	add := func(name string, pastes []clientfile.Paste) {
		for _, p := range pastes {
			fmt.Fprintf(&got, "%s\n%s\n", strings.TrimSpace(name+": "+p.How+" "+p.File), p.Text)
		}
	}
	for _, c := range clientfile.Clients() {
		add(c.Name, c.Pastes(servers()[1]))
	}
	desktop, _ := clientfile.Find("claude-desktop")
	add("claude-desktop, public", desktop.Pastes(clientfile.Server{Name: "mine", URL: "https://mcp.example.com/mine/mcp"}))
	const golden = "testdata/pastes"
	if *update {
		commontest.OK(t, os.WriteFile(golden, []byte(got.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	commontest.OK(t, err)
	commontest.Same(t, string(want), got.String())
}

// Remove takes out what Merge has written, and nothing else, from each client's file.
func TestRemoveTakesOutWhatMergeHasWritten(t *testing.T) {
	const base = "http://127.0.0.1:8787"
	for _, name := range forms {
		t.Run(name, func(t *testing.T) {
			c, before := theirs(t, name)
			fresh := []clientfile.Server{{Name: "new.one", URL: base + "/new.one/mcp", Key: "dm_aaaaaaaa_b"}, {Name: "dormouse", URL: base + "/mcp"}}
			with, err := c.Merge(before, fresh)
			commontest.OK(t, err)
			without, removed, err := c.Remove(with, base+"/", nil)
			commontest.OK(t, err)
			commontest.Same(t, []string{"dormouse", "new.one"}, removed)
			commontest.SameIn(t, "all else", string(before), string(without))
			for of, wanted := range map[string][]string{"http://127.0.0.1:9998": nil, base: {"other"}} {
				if same, removed, err := c.Remove(with, of, wanted); err != nil || removed != nil || string(same) != string(with) {
					t.Errorf("of %s, %v: %v, %v", of, wanted, removed, err)
				}
			}
			if one, removed, err := c.Remove(with, base, []string{"dormouse"}); err != nil || len(removed) != 1 || !strings.Contains(string(one), "8787/new.one/mcp") {
				t.Errorf("one: %v, %v", removed, err)
			}
			only, err := c.Merge(nil, fresh)
			commontest.OK(t, err)
			if left, _, err := c.Remove(only, base, nil); err != nil || strings.Contains(string(left), "extensions") {
				t.Errorf("of a file with nothing else it leaves %q, %v", left, err)
			}
			for _, nothing := range []string{"", "\n"} {
				if out, removed, err := c.Remove([]byte(nothing), base, nil); err != nil || removed != nil || string(out) != nothing {
					t.Errorf("an empty file: %q, %v, %v", out, removed, err)
				}
			}
		})
	}
}
