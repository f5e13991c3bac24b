package wiring_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
)

func TestPlacesForWorkspacesAreReadByTheirForm(t *testing.T) {
	folder := func(string) wiring.Forget { return nil }
	in := bucket.Config{Location: bucket.Location{Region: "eu-test-1"}}
	for where, told := range map[string]string{
		"": "", "folder:/x": "folder:/x", "s3:kept": "host", "s3:kept/a?endpoint=http://127.0.0.1:9": "host",
	} {
		var p wiring.Parts
		if err := p.KeepIn(where, folder, in); err != nil || p.Snapshots != told || (p.Bucket != nil) != (told == "host") {
			t.Errorf("%q: a runner is told %q, in a bucket: %v, %v", where, p.Snapshots, p.Bucket != nil, err)
		}
	}
	for _, where := range []string{"folder:x", "folder:", "/x", "s3:", "s3:K", "gs:kept", "host"} {
		if err := new(wiring.Parts).KeepIn(where, folder, in); err == nil {
			t.Errorf("%q is taken", where)
		}
	}
	if err := new(wiring.Parts).KeepIn("folder:/x", nil, in); err == nil {
		t.Error("a function on AWS takes a folder")
	}
}
