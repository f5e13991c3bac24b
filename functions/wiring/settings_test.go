package wiring_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
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
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("settings: %v (-want +got):\n%s", err, diff)
	}
}

func TestVariableThatCannotBeReadIsNamedWithWhatItMayBe(t *testing.T) {
	for _, text := range []string{"0", "-1s", "soon", "NaN", "Inf", "1e300", "7d"} {
		_, err := read(map[string]string{wiring.EnvLife: text})
		if err == nil || !strings.Contains(err.Error(), wiring.EnvLife) || !strings.Contains(err.Error(), "90s, 25m or 36h") {
			t.Errorf("%s: error is %v, want one that names the variable and what it may be", text, err)
		}
	}
	for _, text := range []string{"word", `["word"]`, `{"github":{"secret":"word"}}`} {
		_, err := read(map[string]string{wiring.EnvConnectSecrets: text})
		if err == nil || !strings.Contains(err.Error(), wiring.EnvConnectSecrets) || strings.Contains(err.Error(), "word") {
			t.Errorf("%s: error is %v, want one that names the variable and no secret", text, err)
		}
	}
	if _, err := read(map[string]string{wiring.EnvWaitingCalls: "many"}); err == nil || !strings.Contains(err.Error(), "want a whole number") {
		t.Errorf("error is %v", err)
	}
}
