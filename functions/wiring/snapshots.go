package wiring

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/bucket"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Forget removes what was kept of a box's workspace, up to a generation.
type Forget func(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error

// KeepIn reads where the workspaces of boxes are kept: "folder:PATH" on this machine, by
// the boxes themselves, so that each function can remove them; or
// "s3:BUCKET[/PREFIX][?endpoint=URL&region=NAME]", to which boxes are given URLs; or ""
// for nowhere. folder makes what removes from a folder; nil refuses folders. Of b, KeepIn
// sets the place; b.Place.Region is the default region.
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
