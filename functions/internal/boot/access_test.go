package boot

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

func TestEverybodyIsLetInOnOneMachineOnlyAndOnRequestOnly(t *testing.T) {
	const keys, open, none = "*auth.Keys", "auth.Open", "<nil>"
	for _, test := range []struct{ mode, socket, sam, want string }{
		{"", "", "", keys},
		{"", "/run/runtime.sock", "true", keys},
		{"keys", "", "", keys},
		{"keys", "/run/runtime.sock", "", keys},
		{"open", "/run/runtime.sock", "", open},
		{"open", "", "true", open},
		{"open", "", "", none},
		{"open", "", "false", none},
		{"Open", "/run/runtime.sock", "", none},
		{"off", "/run/runtime.sock", "", none},
	} {
		t.Setenv(EnvAccess, test.mode)
		t.Setenv(EnvRuntimeSocket, test.socket)
		t.Setenv(envSAMLocal, test.sam)
		got, err := access(sessiontest.NewMemory())
		if fmt.Sprintf("%T", got) != test.want || (err == nil) != (test.want != none) {
			t.Errorf("%+v: %T, %v", test, got, err)
		}
	}
}
