package serversfile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const everyField = `{"image": "ghcr.io/a/b:1", "network": "off", "host_path": "/srv/mcp/x", "host_path_mode": "rw", "env": {"L": "box", "M": "m"},
	"cpus": 1.5, "memory_mb": 700, "pids_limit": 99,
	"read_only_rootfs": true, "install_scripts": true, "scope": "session", "secrets": ["K", "M"]}`

// boxed reads a server with a box section. It returns the server and the warnings.
func boxed(t *testing.T, box string) (serversfile.Server, []serversfile.Warning) {
	t.Helper()
	c, warnings, err := serversfile.Parse([]byte(server(digestOf+`, "x-dormouse": {"box": `+box+`}`)), "f", nil)
	commontest.OK(t, err)
	s, _ := c.Server("x")
	return s, warnings
}

func TestBoxHasWhatTheFileSays(t *testing.T) {
	got, warnings := boxed(t, everyField)
	if len(warnings) > 0 {
		t.Error(warnings)
	}
	want := serversfile.Box{
		Image: "ghcr.io/a/b:1", Offline: true, HostPath: "/srv/mcp/x", HostPathWritable: true,
		CPUs: 1.5, MemoryMB: 700, Pids: 99, ReadOnlyRootFS: true, InstallScripts: true, Scope: serversfile.ScopeSession, Secrets: []string{"K", "M"},
	}
	commontest.Same(t, want, got.Box)
	commontest.SameIn(t, "what only holds here wins over env", map[string]string{"K": "v", "L": "box", "M": "m"}, got.Env)
}

// L-1: defaults.
func TestBoxHasDefaultsWhereTheFileIsSilent(t *testing.T) {
	got, warnings := boxed(t, `{}`)
	commontest.Same(t, serversfile.Box{Scope: serversfile.ScopeSession}, got.Box)
	if got.StartupTimeout != 300*time.Second || got.ToolTimeout != 300*time.Second || got.AnswerTimeout != 6*time.Hour {
		t.Error(got.StartupTimeout, got.ToolTimeout, got.AnswerTimeout)
	}
	if len(warnings) > 0 {
		t.Error(warnings)
	}
}

func TestWrongBoxValueIsRefusedByNameWithWhatIsAllowed(t *testing.T) {
	for _, c := range []struct{ box, want string }{
		{`[]`, `box must be an object, not an array`},
		{`{"network": "lan"}`, `network must be "on", "off" or a list of hosts, such as ["api.github.com"]`},
		{`{"network": ["localhost:5432"]}`, `network: localhost:5432 is the server itself there, which reaches no program of this machine by a list`},
		{`{"host_path_mode": "rwx"}`, `host_path_mode must be "ro" or "rw"`},
		{`{"cpus": 0}`, `cpus must be at least 0.01 and at most 64`},
		{`{"memory_mb": 1.5}`, `memory_mb must be a whole number, at least 16 and at most 1048576`},
		{`{"scope": "principal", "snapshot": "session"}`, `snapshot "session" does not fit scope "principal": leave it out, for what is kept is then of all who share the process, or make it "off"`},
	} {
		t.Run(c.box, func(t *testing.T) {
			err := wrong(server(`"command": "a", "x-dormouse": {"box": `+c.box+`}`), nil)
			if err == nil || !strings.HasSuffix(err.Error(), `server "x": `+c.want) || !strings.HasPrefix(err.Error(), "f:2:") {
				t.Errorf("\n got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestMemoryThatIsKeptSeals(t *testing.T) {
	got, _ := boxed(t, `{"memory": "keep"}`)
	if !got.Box.Sealed || !got.Box.Memory || got.Kept() != serversfile.SnapshotSession {
		t.Errorf("%+v", got.Box)
	}
	if got, _ := boxed(t, `{"memory": "off"}`); got.Box.Sealed || got.Box.Memory {
		t.Errorf("%+v", got.Box)
	}
	for other, want := range map[string]string{
		`"host_path": "/a", "host_path_mode": "rw"`: "host_path_mode",
		`"scope": "shared"`:                         "scope",
		`"snapshot": "off"`:                         "snapshot",
		`"sealed": false`:                           "always seals",
	} {
		err := wrong(server(`"command": "a", "x-dormouse": {"box": {"memory": "keep", `+other+`}}`), nil)
		if err == nil || !strings.Contains(err.Error(), "memory") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", other, err)
		}
	}
}

func TestAListOfHostsSeals(t *testing.T) {
	got, _ := boxed(t, `{"profile": "default", "network": ["api.github.com", "*.slack.com:443", "192.168.1.10:5432", "bücher.example."]}`)
	if got.Box.Offline || !got.Box.Sealed || !slices.Equal(got.Box.Hosts, []string{"api.github.com", "*.slack.com:443", "192.168.1.10:5432", "bücher.example."}) {
		t.Errorf("%+v", got.Box)
	}
	if more, _ := boxed(t, `{"network": ["api.github.com"]}`); more.Digest == got.Digest {
		t.Error("another list is no other server")
	}
	for _, host := range []string{"", "*", "*.", "*.*.test", "a.*.test", "a..test", "https://a.test", "a.test/", "a test", "a.test:", "a.test:0", "a.test:65536", "a.test:http", "::1", "[::1]:80", "*.1.2.3.4", "1.2.3", "256.1.1.1", "2130706433", "0x7f.0X1"} {
		err := wrong(server(fmt.Sprintf(`"command": "a", "x-dormouse": {"box": {"network": ["a.test", %q]}}`, host)), nil)
		if err == nil || !strings.Contains(err.Error(), `network must have hosts such as "api.github.com"`) {
			t.Errorf("%q: %v", host, err)
		}
	}
}

// The four profiles.
func TestProfiles(t *testing.T) {
	for _, c := range []struct {
		name string
		want serversfile.Box
		tool time.Duration
	}{
		{"default", serversfile.Box{Offline: true, CPUs: 1, MemoryMB: 512, Pids: 128, ReadOnlyRootFS: true}, 120 * time.Second},
		{"offline_readonly", serversfile.Box{Offline: true, CPUs: 0.5, MemoryMB: 256, Pids: 64, ReadOnlyRootFS: true}, 60 * time.Second},
		{"network_basic", serversfile.Box{CPUs: 1, MemoryMB: 512, Pids: 128, ReadOnlyRootFS: true}, 120 * time.Second},
		{"network_extended", serversfile.Box{CPUs: 2, MemoryMB: 1024, Pids: 256}, 300 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, warnings := boxed(t, fmt.Sprintf(`{"profile": %q}`, c.name))
			c.want.Profile = c.name
			if diff := cmp.Diff(c.want, got.Box); diff != "" || got.ToolTimeout != c.tool || len(warnings) > 0 {
				t.Error(diff, got.ToolTimeout, warnings)
			}
			commontest.EqualIn(t, "a profile asks for a sandbox", true, got.Box.Confined())
		})
	}
}

func TestProfileGivesWayToWhatTheFileSays(t *testing.T) {
	got := one(t, server(`"command": "a", "x-dormouse": {"tool_timeout_sec": 7, "box": {"network": "on", "memory_mb": 2048, "profile": "default"}}`), nil)
	want := serversfile.Box{CPUs: 1, MemoryMB: 2048, Pids: 128, ReadOnlyRootFS: true, Profile: "default"}
	if diff := cmp.Diff(want, got.Box); diff != "" || got.ToolTimeout != 7*time.Second {
		t.Error(diff, got.ToolTimeout)
	}
}

// L-44: the runner gets no setting that the profile forbids.
func TestLockedFieldOfAProfileCannotBeChanged(t *testing.T) {
	for name, value := range map[string]string{
		"network": `["a.test"]`, "host_path_mode": `"rw"`, "cpus": "4", "memory_mb": "257", "pids_limit": "65",
		"read_only_rootfs": "false",
	} {
		t.Run(name, func(t *testing.T) {
			box := fmt.Sprintf(`{%q: %s, "profile": "offline_readonly"}`, name, value)
			err := wrong(server(`"command": "a", "x-dormouse": {"box": `+box+`}`), nil)
			want := name + ` is locked by the profile "offline_readonly": leave it out or choose another profile`
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Error(err)
			}
		})
	}
	err := wrong(server(`"command": "a", "x-dormouse": {"tool_timeout_sec": 0, "box": {"profile": "offline_readonly"}}`), nil)
	if err == nil || !strings.Contains(err.Error(), "tool_timeout_sec is locked") {
		t.Error("a time above the section gets around the lock:", err)
	}
	got, _ := boxed(t, `{"profile": "offline_readonly", "network": "off", "pids_limit": 64, "host_path_mode": "ro"}`)
	if !got.Box.Offline || got.Box.Pids != 64 {
		t.Error("a value that is the profile's own is no change:", got.Box)
	}
}
