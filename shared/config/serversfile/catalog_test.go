package serversfile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// variables is a Getenv over a fixed map.
func variables(m map[string]string) serversfile.Getenv {
	return func(name string) (string, bool) {
		v, ok := m[name]
		return v, ok
	}
}

// parse reads a file that must have no mistakes and no warnings.
func parse(t *testing.T, file string, env map[string]string) *serversfile.File {
	t.Helper()
	c, warnings, err := serversfile.Parse([]byte(file), "servers.json", variables(env))
	commontest.OK(t, err)
	if len(warnings) > 0 {
		t.Fatalf("warnings: %v", warnings)
	}
	return c
}

// one reads a file with the single server "x".
func one(t *testing.T, file string, env map[string]string) serversfile.Server {
	t.Helper()
	s, ok := parse(t, file, env).Server("x")
	if !ok {
		t.Fatal(`no server "x"`)
	}
	return s
}

func TestServerHasWhatTheFileSays(t *testing.T) {
	got := one(t, `{"$schema": "s", "mcpServers": {"x": {
		"type": "stdio", "command": "uvx", "args": ["a", "-b", ""], "env": {"TZ": "UTC", "E": ""}, "cwd": "sub dir",
		"x-dormouse": {"idle_seconds": 0.25, "startup_timeout_sec": 60, "tool_timeout_sec": 0, "record": "off", "tasks": "always", "enabled": false}
	}}}`, nil)
	want := serversfile.Server{
		Name: "x", Command: "uvx", Args: []string{"a", "-b", ""}, Env: map[string]string{"TZ": "UTC", "E": ""},
		Cwd: "sub dir", Idle: 250 * time.Millisecond, StartupTimeout: time.Minute, AnswerTimeout: 6 * time.Hour, Tasks: "always", Disabled: true,
		Box: serversfile.Box{Scope: serversfile.ScopeSession},
	}
	commontest.Same(t, want, got, cmpopts.IgnoreFields(serversfile.Server{}, "Digest"))
}

func TestRecordKeepsTheHandshakeWithOrWithoutLists(t *testing.T) {
	for value, want := range map[string][3]bool{"on": {true}, "lists": {true, false, true}, "initialize": {true, true}, "off": {}} {
		t.Run(value, func(t *testing.T) {
			s := one(t, `{"mcpServers": {"x": {"command": "a", "x-dormouse": {"record": "`+value+`"}}}}`, nil)
			commontest.EqualIn(t, value+": kept, lists asked for, lists of all", want, [3]bool{s.Record, s.OwnLists, s.SameLists})
		})
	}
}

func TestNativeServerNeedsNoCommandAndHasNoRecord(t *testing.T) {
	c := parse(t, `{"mcpServers": {"a": {"x-dormouse": {"native": "n", "answer_timeout_sec": 5}}, "b": {"x-dormouse": {"native": "m"}}}}`, nil)
	a, _ := c.Server("a")
	b, _ := c.Server("b")
	if a.Native != "n" || a.Record || a.AnswerTimeout != 5*time.Second || a.Digest == b.Digest {
		t.Errorf("got %+v and %+v", a, b)
	}
}

// A server runs only if the file clearly says so.
func TestEnabledFailsClosed(t *testing.T) {
	for _, c := range []struct {
		keys     string
		disabled bool
		warned   bool
	}{
		{`"x-dormouse": {"enabled": true}`, false, false},
		{`"x-dormouse": {"enabled": false}`, true, false},
		{`"x-dormouse": {"enabled": "true"}`, true, true},
		{`"x-dormouse": {"enabled": null}`, true, true},
		{`"disabled": true`, true, false},
		{`"disabled": true, "x-dormouse": {"enabled": true}`, false, false},
		{`"headers": {}, "bearer_token_env_var": ""`, false, false},
		{`"headers": {"A": "b"}`, false, true}, // of a server with a url
	} {
		t.Run(c.keys, func(t *testing.T) {
			file := `{"mcpServers": {"x": {"command": "a", ` + c.keys + `}}}`
			got, warnings, err := serversfile.Parse([]byte(file), "f", nil)
			commontest.OK(t, err)
			s, ok := got.Server("x")
			if !ok || s.Disabled != c.disabled {
				t.Errorf("disabled %v (kept %v), want %v", s.Disabled, ok, c.disabled)
			}
			commontest.EqualIn(t, fmt.Sprintf("warnings %q", warnings), c.warned, len(warnings) > 0)
		})
	}
}
