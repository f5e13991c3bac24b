package dormouse

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

func TestAFormBecomesTheArgumentsOfAdd(t *testing.T) {
	for name, c := range map[string]struct {
		asked api.NewServer
		want  []string // nil: an error
	}{
		"a command":          {api.NewServer{Name: "all", What: `npx -y "a b" 'c\d' e\ f`, Env: []string{"K=v w"}}, []string{"--env=K=v w", "all", "--", "npx", "-y", "a b", `c\d`, "e f"}},
		"a URL":              {api.NewServer{Name: "far", What: "https://mcp.example.com/mcp"}, []string{"far", "https://mcp.example.com/mcp"}},
		"a name":             {api.NewServer{What: "io.github.acme/weather"}, []string{"io.github.acme/weather"}},
		"nothing":            {api.NewServer{Name: "x", What: " "}, nil},
		"no name":            {api.NewServer{What: "npx -y x"}, []string{"--", "npx", "-y", "x"}},
		"a flag":             {api.NewServer{Name: "x", What: "--servers /etc/passwd"}, nil},
		"a flag as the name": {api.NewServer{Name: "--registry=x", What: "npx x"}, nil},
		"an open quote":      {api.NewServer{Name: "x", What: `npx 'x`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := addArguments(c.asked)
			if (err == nil) != (c.want != nil) || !slices.Equal(got, c.want) {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// The console does to the files what the commands do.
func TestTheConsoleEditsTheFilesOfTheCommands(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "servers.json")
	commontest.OK(t, os.WriteFile(file, []byte(`{"mcpServers": {"one": {"command": "a", "env": {"TOKEN": "${TOKEN}"}} /* kept */}}`), 0o600))
	e := (&terminal{}).editsOf(file, filepath.Join(dir, "data"))
	text := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		commontest.OK(t, err)
		return string(raw)
	}
	commontest.OK(t, e.SetValue(t.Context(), "one", "TOKEN", "s3cret value"))
	if got := text(".env"); got != "TOKEN='s3cret value'\n" || strings.Contains(text("servers.json"), "s3cret") {
		t.Errorf("after the first value: %s %s", got, text("servers.json"))
	}
	if err := e.Switch(t.Context(), "one", false); err != nil || !strings.Contains(text("servers.json"), `"enabled": false`) || !strings.Contains(text("servers.json"), "kept") {
		t.Errorf("off: %v %s", err, text("servers.json"))
	}
	if err := e.Switch(t.Context(), "one", true); err != nil || strings.Contains(text("servers.json"), "enabled") {
		t.Errorf("on: %v %s", err, text("servers.json"))
	}
	for name, err := range map[string]error{"no server": e.Switch(t.Context(), "none", true), "no variable": e.SetValue(t.Context(), "one", "a b", "x")} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
