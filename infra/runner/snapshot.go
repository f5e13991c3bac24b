package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// saveTime is how long workspaces may take to be saved when the runner is told to stop.
const saveTime = 15 * time.Second

// snapshotAge is for how long an unused snapshot is kept by default: twice the lifetime of a
// session.
const snapshotAge = 14 * 24 * time.Hour

// keeping says where a runner stores workspaces. The zero keeping stores none.
type keeping struct {
	folder *snapshot.Folder // the store on this machine, nil for none
	root   string           // path of the file with the secret that encrypts stored memory
	host   *frame.Link      // the host, if it stores the workspaces, nil otherwise; set before any process is started
	age    time.Duration    // snapshots in folder that were unused for this long are removed
}

// newKeeping parses DORMOUSE_SNAPSHOTS and DORMOUSE_SNAPSHOT_AGE. The argument store is "folder:"
// and an absolute path, "host" if the host stores the workspaces, or ""; age is a duration, or "".
func newKeeping(store, age string) (keeping, error) {
	k := keeping{age: snapshotAge}
	switch store {
	case "":
		return k, nil
	case "host":
		k.host = new(frame.Link)
		return k, nil
	}
	path, ok := strings.CutPrefix(store, "folder:")
	if !ok || !filepath.IsAbs(path) {
		return k, errors.New("DORMOUSE_SNAPSHOTS: want host, or folder: and an absolute path")
	}
	k.folder, k.root = snapshot.NewFolder(path), filepath.Join(filepath.Dir(path), memory.KeyFile)
	if age == "" {
		return k, nil
	}
	d, err := time.ParseDuration(age)
	if err != nil || d <= 0 {
		return k, fmt.Errorf("DORMOUSE_SNAPSHOT_AGE: want a duration above 0, such as 336h")
	}
	k.age = d
	return k, nil
}

// keeper returns the Keeper of a server's workspaces, nil if they are not stored. The argument
// temp is a folder outside of the workspaces.
func (k keeping) keeper(s serversfile.Server, id storage.BoxID, gen int64, temp string, log *slog.Logger) box.Keeper {
	if s.Kept() == serversfile.SnapshotOff {
		return nil
	}
	c := snapshot.Config{Generation: gen, Log: log}
	switch {
	case k.host != nil:
		c.Store = k.signed(temp)
		c.Key = func(owner string) string { return owner } // the host adds the box's id to the key
	case k.folder != nil:
		c.Store = k.folder
		c.Key = func(owner string) string { return snapshot.Key(string(id), owner) }
	default:
		log.Info("workspaces are not kept while the box sleeps: it was not told where", "server", s.Name)
		return nil
	}
	return snapshot.NewKeeper(c)
}

// signed returns the store in the bucket to which the host gives URLs.
func (k keeping) signed(temp string) *snapshot.Signed {
	return snapshot.NewSigned(snapshot.SignedConfig{Temp: temp, Ask: func(ctx context.Context, f frame.Snapshot) (frame.Kept, error) {
		return (*k.host).Snapshot(ctx, f)
	}})
}

// memory returns the store for the memory of a box's processes, in the folder where the keeper
// stores workspaces.
func (k keeping) memory(keeper box.Keeper, id storage.BoxID, gen int64) (*memory.Kept, error) {
	workspaces, ok := keeper.(*snapshot.Keeper)
	if !ok || !workspaces.Remembers() {
		return nil, errors.New(`memory: "keep" needs a place for it, which this box was not given: leave memory out, or let "dormouse run" run the server`)
	}
	root, err := memory.OpenRoot(k.root)
	if err != nil {
		return nil, err
	}
	tenant, _ := id.Parts()
	key, err := root.Tenant(string(tenant))
	return &memory.Kept{Store: workspaces, Key: key, Box: string(id), Generation: gen}, err
}

// sweep removes snapshots that were unused for a long time, such as those of sessions that ended
// while their box was asleep.
func (k keeping) sweep(ctx context.Context, log *slog.Logger) {
	if k.folder == nil {
		return
	}
	n, err := k.folder.Sweep(ctx, k.age)
	if err != nil {
		log.Warn("some unused snapshots were not removed", "error", err)
	}
	if n > 0 {
		log.Info("snapshots removed that nobody used", "count", n)
	}
}
