package local

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestAFailedStartIsRememberedUntilOneSucceeds(t *testing.T) {
	f := &failures{why: map[string]string{}}
	fails := func(server, phase, why string) {
		f.Record(journal.Event{Kind: journal.ServerFailed, Name: server, Phase: phase, Reason: why})
	}
	fails("one", "process_start", "older")
	fails("one", "process_start", "no key")
	fails("two", "mcp_init", "no answer")
	fails("three", "dep_install", "no such package")
	fails("four", "runtime", "it crashed in a call")
	f.Record(journal.Event{Kind: journal.ServerReady, Name: "two"})
	f.Record(journal.Event{Kind: journal.ServersChanged, FileChange: journal.FileChange{Changed: []string{"three"}}})
	commontest.Same(t, map[string]string{"one": "no key"}, f.reasons())
}
