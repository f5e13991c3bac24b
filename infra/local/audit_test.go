package local

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// The audit file names the caller of a refusal, and has no text of a server.
func TestAuditHasRefusals(t *testing.T) {
	var out bytes.Buffer
	line := audit(&out)
	from := journal.Measured{Sender: journal.Sender{Key: "k7", Address: "192.0.2.7", Refusal: "rate"}}
	line(journal.Event{Kind: journal.Call, Tenant: "acme", Principal: "ada", Name: "mine", Tool: "look", Code: "busy", Reason: "too many calls", Measured: from})
	from.Refusal = "forbidden"
	line(journal.Event{Kind: journal.Refused, Tenant: "acme", Principal: "ada", Name: "memory", Code: "forbidden", Reason: "not for memory", Measured: from})
	line(journal.Event{Kind: journal.RefusedAgain, Reason: "again"})
	line(journal.Event{Kind: journal.Call, Tool: "look", Reason: "the words of a server"})
	dec := json.NewDecoder(&out)
	for _, want := range []audited{
		{Tenant: "acme", Principal: "ada", Server: "mine", Tool: "look", Outcome: "refused", Code: "busy", Key: "k7", Address: "192.0.2.7", Refusal: "rate", Reason: "too many calls"},
		{Tenant: "acme", Principal: "ada", Server: "memory", Outcome: "refused", Code: "forbidden", Key: "k7", Address: "192.0.2.7", Refusal: "forbidden", Reason: "not for memory"},
		{Tool: "look", Outcome: "failed"},
	} {
		var got audited
		if err := dec.Decode(&got); err != nil || got != want {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if dec.More() {
		t.Error("there are further lines")
	}
}
