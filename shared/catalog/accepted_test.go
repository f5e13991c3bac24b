package catalog_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
)

// Whoever is handed the accepted copy knows what its reader knows, whatever form the file
// had, and needs neither the file nor the variables.
func TestAcceptedCopyIsTheWholeCatalog(t *testing.T) {
	files := map[string]string{
		"ours": server(digestOf + `, "x-dormouse": {"box": ` + everyField + `}}, "off": {"disabled": true}, "native": {"x-dormouse": {"native": "n"}}, "bad": {"command": 1, "cwd": 2`),
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
			c, _, err := catalog.LoadHere(file, variables(outside))
			if err != nil {
				t.Fatal(err)
			}
			write(t, folder, "accepted", string(c.Marshal()))
			got, err := catalog.LoadAccepted(filepath.Join(folder, "accepted"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(readOut(c, nil), readOut(got, nil)); diff != "" {
				t.Error(diff)
			}
			for _, name := range c.Names() {
				a, _ := c.Server(name)
				b, _ := got.Server(name)
				if diff := cmp.Diff(fields(a), fields(b)); diff != "" || a.Native != b.Native {
					t.Error(diff)
				}
			}
			if diff := cmp.Diff(c.Rejected(), got.Rejected()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAcceptedCopyThatIsNoneIsRefusedWithoutItsText(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"a servers file": server(`"command": "hunter2"`), "cut off": `{"version":1,"servers":[{"name":"hunter2"`,
		"another version": `{"version":2,"servers":[{"name":"x","command":"hunter2"}]}`, "empty": "",
		"name": `{"version":1,"servers":[{"name":"/","command":"hunter2"}]}`,
	} {
		write(t, folder, "accepted", text)
		if c, err := catalog.LoadAccepted(filepath.Join(folder, "accepted")); err == nil || c != nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}
