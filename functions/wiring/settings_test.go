package wiring_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

func read(set map[string]string) (s wiring.Settings, err error) {
	err = s.Read(func(name string) string { return set[name] })
	return s, err
}

func TestVariablesSetTimesAndBounds(t *testing.T) {
	got, err := read(map[string]string{
		wiring.EnvLife: "36h", wiring.EnvWaitingCalls: "3", wiring.EnvIdle: "7",
		wiring.EnvConnectSecrets: `{"github":"word"}`,
	})
	want := wiring.Settings{
		Limits: sessions.Limits{Life: 36 * time.Hour},
		Idle:   7 * time.Second, WaitingCalls: 3, ConnectSecrets: map[string]string{"github": "word"},
	}
	commontest.OK(t, err)
	commontest.Same(t, want, got)
}

func TestVariableThatCannotBeReadIsNamed(t *testing.T) {
	for _, wrong := range [][2]string{{wiring.EnvLife, "0"}, {wiring.EnvLife, "1e300"}, {wiring.EnvLife, "7d"}, {wiring.EnvWaitingCalls, "many"}, {wiring.EnvConnectSecrets, "word"}, {wiring.EnvConnectSecrets, `{"github":{"secret":"word"}}`}} {
		_, err := read(map[string]string{wrong[0]: wrong[1]})
		if err == nil || !strings.Contains(err.Error(), wrong[0]) || strings.Contains(err.Error(), "word") {
			t.Errorf("%s: error is %v, want one that names the variable and no secret", wrong, err)
		}
	}
}
