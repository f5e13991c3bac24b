package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dormouse run does not start if it cannot read the settings of a third party, so check
// reports that.
func TestCheckNamesAThirdPartyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "servers.json")
	const text = `{"mcpServers": {"x": {"command": "a"}}, "x-dormouse": {"connect": {"github": {
		"authorize": "https://example.com/a", "token": "https://example.com/t", "client_id": "c", "client_secret": "${DORMOUSE_TEST_NOT_SET}"}}}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []remark{{Text: "x-dormouse.connect: github: client_secret has a variable that is not set; set it, or put it into .env beside the file"}}
	if diff := cmp.Diff(want, check(file, nil).Mistakes); diff != "" {
		t.Error(diff)
	}
}
