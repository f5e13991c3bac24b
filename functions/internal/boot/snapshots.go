package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/bucket"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/relay"
)

// snapshotForms is what DORMOUSE_SNAPSHOTS may be.
const snapshotForms = folderForm + "s3:" + bucket.PlaceForm

// keep reads where the workspaces of boxes are kept: in a folder of this machine by the
// boxes themselves, so that each function can remove them, or in a bucket, to which they
// are given URLs.
func (f *Function) keep(where string) error {
	if where == "" {
		return nil
	}
	f.Relay.Kept = func(server string) bool {
		s, ok := f.Catalog.Server(server)
		return ok && s.Kept() == catalog.SnapshotSession
	}
	kind, rest, _ := strings.Cut(where, ":")
	switch {
	case folderForm != "" && kind == "folder" && filepath.IsAbs(rest):
		f.Relay.Forget = forgetIn(rest)
		f.snapshots = where
		return nil
	case kind == "s3":
		place, err := bucket.ParsePlace(rest, os.Getenv(envRegion))
		if err != nil {
			return err
		}
		f.bucket = bucket.New(bucket.Config{Place: place, Credentials: credentials(), Domain: os.Getenv(envDomain)})
		f.snapshots = "host"
		return nil
	}
	return fmt.Errorf("want %s, not %q", snapshotForms, where)
}

// RelayWithBucket is Relay for a function that has rights in the bucket of snapshots, if
// there is one: the relay function and the sweep. The others leave there what has to be
// removed to the sweep.
func (f *Function) RelayWithBucket() relay.Config {
	c := f.Relay
	if f.bucket != nil {
		c.Snapshots, c.Forget = f.bucket, f.bucket.Forget
	}
	return c
}
