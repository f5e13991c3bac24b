package serversfile_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// copied returns the catalog that a process has which reads the accepted copy of c.
func copied(t *testing.T, c *serversfile.File) *serversfile.File {
	t.Helper()
	folder := t.TempDir()
	write(t, folder, "accepted", string(c.Marshal()))
	accepted, err := serversfile.LoadAccepted(filepath.Join(folder, "accepted"))
	commontest.OK(t, err)
	return accepted
}

// A process that reads the accepted copy has the same catalog as the process that read the
// file. The form of the file does not matter, and the copy needs neither the file nor the
// variables.
func TestAcceptedCopyIsTheWholeCatalog(t *testing.T) {
	files := map[string]string{
		"ours": server(digestOf + `, "x-dormouse": {"box": ` + everyField + `}}, "off": {"disabled": true}, "native": {"x-dormouse": {"native": "n", "audit": {"bodies": "auditor", "redact": ["pin"]}}}, "bad": {"command": 1, "cwd": 2`),
	}
	for _, file := range clientFiles(t) {
		files[file] = ""
	}
	for file, text := range files {
		t.Run(file, func(t *testing.T) {
			folder := t.TempDir()
			if text != "" {
				file = filepath.Join(folder, "servers.json")
				write(t, folder, "servers.json", text)
			}
			c, _, err := serversfile.LoadHere(file, variables(outside))
			commontest.OK(t, err)
			got := copied(t, c)
			commontest.Same(t, readOut(c, nil), readOut(got, nil))
			for _, name := range c.Names() {
				a, _ := c.Server(name)
				b, _ := got.Server(name)
				if diff := cmp.Diff(fields(a), fields(b)); diff != "" || a.Native != b.Native || !cmp.Equal(a.Audit, b.Audit) {
					t.Error(diff)
				}
			}
			commontest.Same(t, c.Rejected(), got.Rejected())
		})
	}
}

func TestLimitsAndAccessAreHandedOn(t *testing.T) {
	c := parse(t, `{"mcpServers": {
		"one": {"command": "/bin/one"},
	}, "x-dormouse": {"limits": {"principal": /* a comment */ "60/m"}, "access": {"tenant": "acme"}}}`, nil)
	for _, c := range []*serversfile.File{c, copied(t, c)} {
		if string(c.Limits()) != `{"principal":"60/m"}` || string(c.Access()) != `{"tenant":"acme"}` {
			t.Errorf("%s, %s", c.Limits(), c.Access())
		}
	}
	for _, section := range []string{"limits", "access"} {
		if _, _, err := serversfile.Parse([]byte(`{"mcpServers": {}, "x-dormouse": {"`+section+`": []}}`), "servers.json", nil); err == nil || !strings.Contains(err.Error(), "must be an object") {
			t.Errorf("%s that are a list: %v", section, err)
		}
	}
}
