//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// Doctor starts a server as its first client would, whether dormouse runs or not, and leaves
// nothing behind.
func TestE2EDoctorTakesAServerThroughItsStart(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	good := strings.TrimSuffix(strings.TrimSpace(read(t, m.servers)), "}\n}")
	write(t, m.servers, good+`, "crash": {"command": "sh", "args": ["-c", "echo one >&2; echo out of cheese >&2; exit 3"]}}}`)
	folder := filepath.Dir(m.servers)
	file, before := read(t, m.servers), entries(t, folder)
	checks := func(server string, wants int) (found map[string]string) {
		t.Helper()
		out, code := operate(t, "doctor", server, "--json", "--servers", m.servers, "--data", m.data, "--listen", "127.0.0.1:0")
		var all []struct {
			Check, Says string
			OK          bool
			Output      []string
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil || code != wants {
			t.Fatalf("doctor %s: exit code %d, %v: %s", server, code, err, out)
		}
		found = map[string]string{}
		for _, f := range all {
			found[f.Check] = fmt.Sprintf("%t %s", f.OK, f.Says)
			if !f.OK && !strings.Contains(strings.Join(f.Output, "\n"), "out of cheese") {
				t.Errorf("%s shows %q", f.Check, f.Output)
			}
		}
		return found
	}
	look := func(up string) {
		t.Helper()
		got := checks("one", 0)
		for check, want := range map[string]string{"ports": up, "install": "true ", "start": "true ", "handshake": "true ", "first list": "true 1 tool"} {
			if !strings.HasPrefix(got[check], want) {
				t.Errorf("%s of one: %q, want %q", check, got[check], want)
			}
		}
		if got = checks("crash", 1); !strings.HasPrefix(got["start"], "false exited with code 3") || !strings.Contains(got["start"], "out of cheese") || got["first list"] != "" {
			t.Errorf("crash: %v", got)
		}
	}
	look("true 127.0.0.1:0 is free")
	if left := m.processes(); len(left) > 0 {
		t.Errorf("doctor left %v", left)
	}
	if got := entries(t, folder); file != read(t, m.servers) || strings.Join(got, " ") != strings.Join(before, " ") {
		t.Errorf("doctor has changed the folder: %v, before %v", got, before)
	}
	m.start()
	look("true dormouse run is up at ")
	if len(m.those("stdio")) > 0 {
		t.Error("the machine itself has started a server")
	}
}

func entries(t *testing.T, folder string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(folder)
	commontest.OK(t, err)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
