package dormouse

import (
	"strings"
	"testing"
)

func TestCompletionProposesWhatMayComeNext(t *testing.T) {
	newDesk(t, `-- servers.json --
{"mcpServers": {"github": {"command": "a"}, "gitlab": {"command": 5}, "$(touch x)": {"command": "b"}, "weather": {"command": "c", "disabled": true}}}
-- other.json --
{"mcpServers": {"other": {"command": "a"}}}
`)
	for _, test := range []struct {
		words []string
		want  string
	}{
		{[]string{"run"}, "run"}, // runner is hidden
		{[]string{"keys", ""}, "create list revoke rotate"},
		{[]string{"stop", ""}, "github gitlab weather"},
		{[]string{"stop", "--data", "x", "git"}, "github gitlab"},
		{[]string{"enable", "--servers", "other.json", ""}, "other"},
		{[]string{"keys", "create", "ada", "--server", "w"}, "weather"},
		{[]string{"run", "--access", "=", "o"}, "oauth open"},
		{[]string{"list", "--"}, "--data --help --json --key --servers --url --version"},
		{[]string{"connect", "zed", "w"}, "weather"},
		{[]string{"import", "claude-c"}, "claude-code"},
	} {
		printed, code := printedBy(append([]string{"complete", "--"}, test.words...), terminal{now: noon})
		if got := strings.Join(strings.Fields(printed), " "); got != test.want || code != exitDone {
			t.Errorf("%q: %q, want %q; %d", test.words, got, test.want, code)
		}
	}
	for shell, want := range map[string]string{"bash": "complete -o default -F _dormouse dormouse\n", "zsh": "#compdef dormouse\n", "fish": "complete -c dormouse"} {
		t.Run(shell, func(t *testing.T) {
			if printed, code := printedBy([]string{"completion", shell}, terminal{now: noon}); code != exitDone || !strings.Contains(printed, want) {
				t.Errorf("%s: %d %s", shell, code, printed)
			}
		})
	}
}
