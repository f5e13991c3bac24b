//go:build e2e

package dormouse_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A machine hosts a server of another machine as a remote one.
func TestE2ERemoteServerIsHostedLikeTheOthers(t *testing.T) {
	t.Parallel()
	far := newMachine(t, servers{"one": nil})
	far.start()
	m := machineOf(t, map[string]any{
		"public": map[string]any{"url": far.urls["one"]},
		"far":    map[string]any{"url": far.urls["one"], "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}},
	})
	m.start()
	c := m.session("far")
	commontest.EqualIn(t, "the first call counts", "1", c.text("count", ""))
	m.restart()
	commontest.EqualIn(t, "after a restart the session counts", "2", c.text("count", ""))
	far.restart()
	if got := c.text("count", ""); got == "" {
		t.Error("after a restart of the remote machine nothing is answered")
	}
	if status, body := m.refusal(m.urls["public"]); !strings.Contains(body, "is not public") {
		t.Errorf("a private address answers %d %s", status, body)
	}
}
