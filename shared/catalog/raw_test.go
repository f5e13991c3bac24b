package catalog_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
)

// rawOf reads a file of testdata/forms.
func rawOf(t *testing.T, file string) (*catalog.Raw, error) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return catalog.ReadRaw(data, file, variables(outside))
}

func TestRawFileHasTheServersOfTheParsedOne(t *testing.T) {
	for _, file := range clientFiles(t) {
		parsed, _, err := catalog.LoadHere(file, variables(outside))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := rawOf(t, file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		want := parsed.Names()
		for _, r := range parsed.Rejected() {
			want = append(want, r.Name)
		}
		var got []string
		for _, s := range raw.Servers {
			got = append(got, s.Name)
			var entry map[string]any
			if err := json.Unmarshal(s.JSON, &entry); err != nil || entry == nil {
				t.Errorf("%s: %s is %s", file, s.Name, s.JSON)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

func TestRawFileExpandsNothing(t *testing.T) {
	raw, err := rawOf(t, filepath.Join("testdata", "forms", "vscode", ".vscode", "mcp.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(raw.Servers[0].JSON); !strings.Contains(got, `"${input:zone}"`) || !strings.Contains(got, `"GONE":null`) {
		t.Error(got)
	}
	want := []catalog.RawInput{
		{ID: "nobody", Description: "A key that nobody has"},
		{ID: "perplexity-key", Description: "Perplexity API Key", Secret: true},
		{ID: "zone", Description: "Time zone", Default: "UTC", HasDefault: true},
	}
	if diff := cmp.Diff(want, raw.Inputs); diff != "" {
		t.Error(diff)
	}
}

func TestRawFileSaysWhereServersCanBeAdded(t *testing.T) {
	for text, want := range map[string]string{
		`{"mcpServers": {}}`:            "mcpServers",
		`{"servers": {}, "inputs": []}`: "servers",
		`{"mcp": {"servers": {}}}`:      "mcp.servers",
		`{"context_servers": {}}`:       "context_servers",
		`{"a": {"command": "x"}}`:       "",
		`{"command": {"command": "x"}}`: "",
		`{"name": "a", "command": "x"}`: "nowhere",
		`{"name": "a/b", "packages": [{"registryType": "npm", "identifier": "b"}]}`: "nowhere",
		"[mcp_servers.a]\ncommand = 'x'":                                            "nowhere",
	} {
		raw, err := catalog.ReadRaw([]byte(text), "file", nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := strings.Join(raw.Path, ".")
		if !raw.Editable {
			got = "nowhere"
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
