package wiring

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Forget removes the kept workspaces of a box, up to a generation. remembers says that the server
// keeps memory ("memory": "keep"), which goes too.
type Forget func(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation, remembers bool) error

// KeepIn parses the location where boxes keep workspaces. "folder:PATH" is on this machine:
// the boxes write there themselves, so each function can remove workspaces. With
// "s3:BUCKET[/PREFIX][?endpoint=URL&region=NAME]", boxes get URLs. "" means nowhere.
//
// folder returns the Forget of a folder. If folder is nil, KeepIn refuses a folder. KeepIn
// sets the location of b, with the region and the endpoint of b.Location as defaults.
func (p *Parts) KeepIn(where string, folder func(path string) Forget, b bucket.Config) error {
	if where == "" {
		return nil
	}
	kind, rest, _ := strings.Cut(where, ":")
	switch {
	case folder != nil && kind == "folder" && filepath.IsAbs(rest):
		p.Forget, p.Snapshots = folder(rest), where
		return nil
	case kind == "s3":
		location, err := bucket.ParseLocation(rest, b.Location.Region)
		if err != nil {
			return err
		}
		location.Endpoint = cmp.Or(location.Endpoint, b.Location.Endpoint)
		b.Location = location
		p.Bucket, p.Snapshots = bucket.New(b), "host"
		return nil
	}
	forms := "s3:" + bucket.LocationForm
	if folder != nil {
		forms = "folder:PATH or " + forms
	}
	return fmt.Errorf("want %s, not %q", forms, where)
}
