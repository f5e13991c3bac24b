package suggest_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/suggest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestTheNameWithTheFewestEditsIsMeant(t *testing.T) {
	names := []string{"time", "fetch"}
	for name, want := range map[string]string{"timee": "time", "timez": "time", "TIME": "time", "fetsch": "fetch", "git": "", "": ""} {
		commontest.EqualIn(t, name, want, suggest.Of(name, names, 2))
	}
}
