package suggest_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/suggest"
)

func TestTheNameWithTheFewestEditsIsMeant(t *testing.T) {
	names := []string{"time", "fetch"}
	for name, want := range map[string]string{"timee": "time", "timez": "time", "TIME": "time", "fetsch": "fetch", "git": "", "": ""} {
		if got := suggest.Of(name, names, 2); got != want {
			t.Errorf("%q means %q, want %q", name, got, want)
		}
	}
}
