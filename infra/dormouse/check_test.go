package main

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dormouse run does not start if it cannot read the settings of a third party, so check
// reports that.
func TestCheckNamesAThirdPartyThatCannotBeRead(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers": {"x": {"command": "a"}}, "x-dormouse": {"connect": {"github": {
		"authorize": "https://example.com/a", "token": "https://example.com/t", "client_id": "c", "client_secret": "${DORMOUSE_TEST_NOT_SET}"}}}}`)
	want := []remark{{Text: "x-dormouse.connect: github: client_secret has a variable that is not set; set it, or put it into .env beside the file"}}
	if diff := cmp.Diff(want, check(filepath.Join(s.data, "servers.json"), nil).Mistakes); diff != "" {
		t.Error(diff)
	}
}
