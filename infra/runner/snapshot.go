package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// saveTime is what workspaces get to be saved in when the runner is told to stop.
const saveTime = 15 * time.Second

// snapshotAge is how long a snapshot is kept that nobody uses: twice the life of a
// session, unless the runner is told otherwise.
const snapshotAge = 14 * 24 * time.Hour

// keeping is where a runner keeps workspaces; the zero keeping keeps none.
type keeping struct {
	folder *snapshot.Folder
	age    time.Duration
}

// newKeeping reads DORMOUSE_SNAPSHOTS, which is "folder:" and an absolute path, or
// nothing, and DORMOUSE_SNAPSHOT_AGE, a duration, or nothing.
func newKeeping(store, age string) (keeping, error) {
	k := keeping{age: snapshotAge}
	if store == "" {
		return k, nil
	}
	path, ok := strings.CutPrefix(store, "folder:")
	if !ok || !filepath.IsAbs(path) {
		return k, errors.New("DORMOUSE_SNAPSHOTS: want folder: and an absolute path")
	}
	k.folder = snapshot.NewFolder(path)
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

// keeper keeps the workspaces of a server's processes, if they are to be kept.
func (k keeping) keeper(s catalog.Server, id session.BoxID, gen int64, log *slog.Logger) box.Keeper {
	if s.Kept() == catalog.SnapshotOff {
		return nil
	}
	if k.folder == nil {
		log.Info("workspaces are not kept while the box sleeps: it was not told where", "server", s.Name)
		return nil
	}
	return snapshot.NewKeeper(snapshot.Config{
		Store: k.folder, Generation: gen, Log: log,
		Key: func(owner string) string { return snapshot.Key(string(id), owner) },
	})
}

// sweep removes what sessions left behind that ended without a box.
func (k keeping) sweep(ctx context.Context, log *slog.Logger) {
	if k.folder == nil {
		return
	}
	n, err := k.folder.Sweep(ctx, k.age)
	if err != nil {
		log.Warn("snapshots that nobody uses were not removed", "error", err)
	}
	if n > 0 {
		log.Info("snapshots removed that nobody used", "count", n)
	}
}
