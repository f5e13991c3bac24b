package dormouse

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// installedOn returns a manager of a system, whose tools are stand-ins that note how they are
// called, and a servers file.
func installedOn(t *testing.T, system string, uid int) (m *serviceManager, servers string, told func() string) {
	t.Helper()
	root := t.TempDir()
	calls := filepath.Join(root, "calls")
	for _, name := range []string{"systemctl", "journalctl", "launchctl"} {
		writeFile(t, filepath.Join(root, "bin", name), "#!/bin/sh\necho "+name+" \"$@\" >>"+calls+"\necho from "+name+"\n", 0o700) //nolint:gosec // a program
	}
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	servers = filepath.Join(root, "my servers", "servers.json")
	writeFile(t, servers, "{}", 0o600)
	m = &serviceManager{
		t: &terminal{out: &bytes.Buffer{}, err: io.Discard}, system: system, uid: uid, home: filepath.Join(root, "home"), config: filepath.Join(root, "config"), etc: filepath.Join(root, "etc"),
		program: "/usr/local/bin/dormouse", environ: []string{"PATH=/opt/50%/bin:/bin", "HOME=/home/ada", "https_proxy=http://proxy:1", "AWS_SECRET_ACCESS_KEY=no"},
	}
	return m, servers, func() string {
		text, err := os.ReadFile(calls)
		commontest.OK(t, err)
		return string(text)
	}
}

func TestAServiceIsInstalledForEachSystem(t *testing.T) {
	for _, test := range []struct {
		name, system string
		uid          int
		files        map[string][]string // below the root, with lines that they have
		calls        string
	}{
		{"systemd of a user", "linux", 1000, map[string][]string{"config/systemd/user/dormouse.service": {
			`ExecStart=/usr/local/bin/dormouse run --servers "ROOT/my servers/servers.json" --data "ROOT/my servers/.dormouse" --port 9000 --public-url https://x/$$1`,
			`WorkingDirectory=ROOT/my servers`, `Environment=PATH=/opt/50%%/bin:/bin`, `Environment=https_proxy=http://proxy:1`, `Type=notify`, `WantedBy=default.target`,
		}}, `systemctl --user daemon-reload
systemctl --user enable dormouse.service
systemctl --user restart dormouse.service
systemctl --user --no-pager --lines=0 status dormouse.service
journalctl --user --unit dormouse.service --no-pager --output cat --lines 100
systemctl --user disable --now dormouse.service
systemctl --user daemon-reload
`},
		{"systemd as root", "linux", 0, map[string][]string{
			"etc/dormouse.service": {`ExecStart=/usr/local/bin/dormouse run --servers "ROOT/my servers/servers.json" --data %S/dormouse --public-url https://x/$$1 $DORMOUSE_FLAGS`, "DynamicUser=yes"},
			"etc/dormouse.socket":  {"ListenStream=127.0.0.1:8787"},
		}, `systemctl daemon-reload
systemctl enable dormouse.socket dormouse.service
systemctl restart dormouse.socket dormouse.service
systemctl --no-pager --lines=0 status dormouse.service
journalctl --unit dormouse.service --no-pager --output cat --lines 100
systemctl disable --now dormouse.socket dormouse.service
systemctl daemon-reload
`},
		{"launchd", "darwin", 501, map[string][]string{"home/Library/LaunchAgents/mcp.dormouse.plist": {
			"    <string>--servers</string>", "    <string>ROOT/my servers/servers.json</string>", "    <string>https://x/$1</string>", "  <key>Label</key><string>mcp.dormouse</string>",
			"    <key>PATH</key><string>/opt/50%/bin:/bin</string>", "  <key>StandardErrorPath</key><string>ROOT/home/Library/Logs/dormouse.log</string>",
		}}, `launchctl bootout gui/501/mcp.dormouse
launchctl bootstrap gui/501 ROOT/home/Library/LaunchAgents/mcp.dormouse.plist
launchctl print gui/501/mcp.dormouse
launchctl bootout gui/501/mcp.dormouse
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, servers, told := installedOn(t, test.system, test.uid)
			root := filepath.Dir(m.home)
			if f, ok := errors.AsType[failure](m.status(t.Context())); !ok || f.code != exitNotUp {
				t.Errorf("status before: %v", f)
			}
			c := installServiceCommand{Servers: servers, Flags: []string{"--", "--port", "9000", "--public-url", "https://x/$1"}}
			if m.root() {
				commontest.Contains(t, "the socket unit listens", "dormouse.socket", fmt.Sprint(c.install(t.Context(), m)))
				commontest.Contains(t, "the unit has ProtectHome", "cannot see", fmt.Sprint((&installServiceCommand{Servers: "/home/ada/servers.json"}).install(t.Context(), m)))
				c.Flags = []string{"--public-url", "https://x/$1"}
			}
			commontest.OK(t, c.install(t.Context(), m))
			for path, lines := range test.files {
				content, err := os.ReadFile(filepath.Join(root, path))
				commontest.OK(t, err)
				text := string(content)
				for _, want := range lines {
					want = strings.ReplaceAll(want, "ROOT", root)
					commontest.Contains(t, path, "\n"+want+"\n", "\n"+text)
				}
				if strings.Contains(text, "AWS_SECRET") || strings.HasSuffix(path, ".plist") && xml.Unmarshal([]byte(text), new(struct{})) != nil {
					t.Errorf("%s: %s", path, text)
				}
			}
			writeFile(t, m.log(), "one\ntwo\n", 0o600)
			commontest.Check(t, m.status(t.Context()))
			commontest.Check(t, (&logsServiceCommand{}).print(t.Context(), m))
			commontest.Check(t, m.uninstall(t.Context()))
			for path := range test.files {
				if exists(filepath.Join(root, path)) {
					t.Errorf("%s is left", path)
				}
			}
			commontest.Same(t, strings.ReplaceAll(test.calls, "ROOT", root), told())
			said := m.t.out.(*bytes.Buffer).String()
			commontest.Contains(t, "it says", map[bool]string{true: "one\ntwo\n", false: "from journalctl"}[m.launchd()], said)
		})
	}
}
