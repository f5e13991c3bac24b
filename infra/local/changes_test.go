package local

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestWatchersLearnWhatHasChangedForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChanges()
		all := func(string, string) bool { return true }
		acme := func(tenant, _ string) bool { return tenant == "acme" }
		_, begin, err := c.wait(t.Context(), 0, all)
		commontest.OK(t, err)
		c.record(journal.Event{Kind: journal.Frame, Tenant: "acme", Name: "frame"})
		c.record(journal.Event{Kind: journal.ProcessCount})
		c.record(journal.Event{Kind: journal.Call, Tenant: "other", Name: "two"})
		c.record(journal.Event{Kind: journal.ServersChanged, Name: "servers.json", FileChange: journal.FileChange{Added: []string{"new"}}})
		// A caller that waits only now misses no earlier change.
		if servers, _, _ := c.wait(t.Context(), begin, all); !slices.Equal(servers, []string{"new", "two"}) {
			t.Errorf("the user of the machine is told of %v", servers)
		}
		ctx, leave := context.WithCancel(t.Context())
		var told []string
		var end error
		go func() {
			var now uint64
			told, now, end = c.wait(ctx, begin, acme)
			_, _, end = c.wait(ctx, now, acme)
		}()
		if synctest.Wait(); told != nil {
			t.Errorf("a tenant is told of another's %v", told)
		}
		c.record(journal.Event{Kind: journal.ServerReady, Tenant: "acme", Name: "one"})
		if synctest.Wait(); !slices.Equal(told, []string{"one"}) {
			t.Errorf("a tenant is told of %v", told)
		}
		leave()
		if synctest.Wait(); end == nil {
			t.Error("who is gone is waited for")
		}
		for i := range maxChanged + 1 {
			c.record(journal.Event{Kind: journal.Call, Tenant: "t", Name: string(rune(0x10000 + i))})
		}
		if len(c.last) > maxChanged {
			t.Errorf("%d changes are kept", len(c.last))
		}
	})
}
