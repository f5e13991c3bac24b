package wiring

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/bucket"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Forget removes the kept workspaces of a box, up to a generation.
type Forget func(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error

// KeepIn parses the place where boxes keep workspaces. "folder:PATH" is on this machine:
// the boxes write there themselves, so each function can remove workspaces. With
// "s3:BUCKET[/PREFIX][?endpoint=URL&region=NAME]", boxes get URLs. "" means nowhere.
//
// folder returns the Forget of a folder. If folder is nil, KeepIn refuses a folder. KeepIn
// sets the place of b, with b.Place.Region as the default region.
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
		place, err := bucket.ParsePlace(rest, b.Place.Region)
		if err != nil {
			return err
		}
		b.Place = place
		p.Bucket, p.Snapshots = bucket.New(b), "host"
		return nil
	}
	forms := "s3:" + bucket.PlaceForm
	if folder != nil {
		forms = "folder:PATH or " + forms
	}
	return fmt.Errorf("want %s, not %q", forms, where)
}
