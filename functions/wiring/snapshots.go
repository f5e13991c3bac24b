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

// Forget removes what an owner has saved in a box, unless a generation later than gen has saved it.
// An owner is a session, or a principal whose sessions share a workspace. If remembers is true,
// Forget also removes the memory that the server's processes have saved ("memory": "keep").
type Forget func(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation, remembers bool) error

// KeepIn parses the location where boxes save workspaces; "" stands for nowhere. Boxes themselves
// write to "folder:PATH" on this machine. For "s3:BUCKET[/PREFIX][?endpoint=URL&region=NAME]", they
// get signed URLs.
//
// The function forgetIn returns the Forget for a folder. If it is nil, KeepIn refuses "folder:".
// The region and the endpoint of b.Location are the defaults for a location in S3.
func (p *Parts) KeepIn(where string, forgetIn func(path string) Forget, b bucket.Config) error {
	if where == "" {
		return nil
	}
	kind, rest, _ := strings.Cut(where, ":")
	switch {
	case forgetIn != nil && kind == "folder" && filepath.IsAbs(rest):
		p.Forget, p.Snapshots = forgetIn(rest), where
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
	if forgetIn != nil {
		forms = "folder:PATH or " + forms
	}
	return fmt.Errorf("want %s, not %q", forms, where)
}
