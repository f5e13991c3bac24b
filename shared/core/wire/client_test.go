package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestClientNameIsShortAndControlsNoTerminal(t *testing.T) {
	for name, want := range map[string]string{
		"claude-code":                   "claude-code",
		"Crème brûlée 日本":               "Crème brûlée 日本",
		"a\x1b]0;x\a\nb\u009b\u202ec\n": "a ]0;x  b  c",
		strings.Repeat("é", 70):         strings.Repeat("é", 63) + "…",
		strings.Repeat("x", 1<<16):      strings.Repeat("x", 63) + "…",
		"":                              "",
	} {
		init, err := json.Marshal(map[string]any{"clientInfo": map[string]any{"name": name}})
		commontest.OK(t, err)
		commontest.EqualIn(t, name, want, wire.ClientName(init))
	}
	for _, init := range []string{"", "{}", `{"clientInfo":{"name":5}}`} {
		commontest.EqualIn(t, init, "", wire.ClientName([]byte(init)))
	}
}
