//go:build e2e

package dormouse_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The reason why a server cannot be used is one text, wherever it is read.
func TestE2EReasonOfAFailedStartIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	executable(t, filepath.Join(bin, "npm"), `#!/bin/sh
echo "npm error code E404
npm error 404  '@modelcontextprotocol/server-memori@*' is not in this registry." >&2
exit 1
`)
	executable(t, filepath.Join(bin, "npx"), "#!/bin/sh\nexit 9\n")
	m := machineOf(t, map[string]any{
		"absent": map[string]any{"command": "no-such-program-anywhere"},
		"typo":   map[string]any{"command": "npx", "args": []string{"-y", "@modelcontextprotocol/server-memori"}},
		"exits":  map[string]any{"command": stdio(t), "args": []string{"-stderr", "no license found\n", "-exit", "3"}},
	})
	m.env = append(m.env, "PATH="+bin+":"+os.Getenv("PATH"))
	m.start() // a box that sleeps has forgotten why it could not start
	for name, says := range map[string]string{
		"absent": "no-such-program-anywhere is not on the PATH of dormouse run", "typo": "npm knows no @modelcontextprotocol/server-memori", "exits": "no license found",
	} {
		m.eventually(patience, "the client gets "+says, func() bool { // while packages are installed, initialize is answered without the server
			return strings.Contains(web(t, http.DefaultClient, http.MethodPost, m.urls[name], initialize, usual()).text, says)
		})
		m.await(patience, "the terminal says why", func(e event) bool { return e.Name == name && strings.Contains(e.Reason, says) })
		m.eventually(patience, "logs says "+says, func() bool {
			out, code := operate(t, "logs", name, "--data", m.data)
			return code == 0 && strings.Contains(out, says)
		})
	}
	for _, line := range []string{"absent +failed .* no-such-program", "typo +failed .* npm knows no", "exits +failed .* no license found"} {
		m.eventually(patience, "list says "+line, func() bool { return regexp.MustCompile("(?m)^" + line).MatchString(m.does("list")) })
	}
}
