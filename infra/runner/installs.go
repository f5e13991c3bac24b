package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// Limits of installs that are stored for later starts.
const (
	maxInstallBytes = 512 << 20 // bytes of all files of an install
	maxInstallFiles = 50_000
	uploadTime      = time.Minute
	unpackTime      = 20 * time.Second // after this time a start makes the install instead of unpacking it
)

// keptInstalls stores what npx and uvx install, in the same place as the workspaces of the box. No
// other box gets these installs, because the host gives a box only URLs of its own files. The
// runner packs an install before the server runs, into a file without a name, and later takes the
// digest of that file. A later start notices by the digest if a server has changed the copy that is
// uploaded.
type keptInstalls struct {
	store snapshot.Store
	key   func(name string) string
	gen   int64
	temp  string // a folder outside of the workspaces, for temporary files
	log   *slog.Logger
	guard *guard.Guard // nil in a program with a single box

	uploads atomic.Int64 // uploads in progress
}

var _ provision.Kept = (*keptInstalls)(nil)

// Unpack implements provision.Kept. Unpack also deletes a damaged install, so that a new one can
// be stored.
func (k *keptInstalls) Unpack(ctx context.Context, name, folder string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, unpackTime)
	defer cancel()
	archive, _, err := k.store.Get(ctx, k.key(name))
	if errors.Is(err, snapshot.ErrNone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = archive.Close() }() // nothing was written
	err = snapshot.Unpack(ctx, archive, folder, installLimits())
	if errors.Is(err, snapshot.ErrCorrupt) {
		err = errors.Join(err, k.store.Delete(ctx, k.key(name), k.gen))
	}
	return err == nil, err
}

// Pack implements provision.Kept. Pack uploads the install in the background, while the box stays
// awake.
func (k *keptInstalls) Pack(ctx context.Context, name, folder string) (err error) {
	file, err := os.CreateTemp(k.temp, "install-*")
	if err != nil {
		return err
	}
	// The file has no name any more, so no process of the box can open it.
	if err = os.Remove(file.Name()); err == nil {
		err = snapshot.Pack(ctx, file, folder, installLimits())
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = file.Close() // the file is not used any more
		return fmt.Errorf("pack an install: %w", err)
	}
	k.uploads.Add(1)
	k.guard.Go(func() { k.upload(context.WithoutCancel(ctx), name, file) })
	return nil
}

func (k *keptInstalls) upload(ctx context.Context, name string, file *os.File) {
	defer k.uploads.Add(-1)
	defer func() { _ = file.Close() }() // this also frees the file, which has no name
	ctx, cancel := context.WithTimeout(ctx, uploadTime)
	defer cancel()
	err := k.store.Put(ctx, k.key(name), k.gen, func(w io.Writer) error {
		_, err := io.Copy(w, file)
		return err
	})
	switch {
	case errors.Is(err, snapshot.ErrStale):
		k.log.Info("a newer runner of the box keeps its install", "name", name)
	case err != nil:
		k.log.Warn("an install is not kept for later starts", "name", name, "error", err)
	}
}

// busy reports whether an upload is in progress. A nil keptInstalls is never busy.
func (k *keptInstalls) busy() bool { return k != nil && k.uploads.Load() > 0 }

func installLimits() snapshot.Limits {
	return snapshot.Limits{Bytes: maxInstallBytes, Files: maxInstallFiles}
}

// installsOf returns the store for the installs of a box, nil if none are stored. The argument place
// is "folder:" and an absolute path, or "". For "" the host stores them if it stores workspaces. If
// oneMachine is set, it stores none, because all boxes share an install cache.
func (k keeping) installsOf(place string, oneMachine bool, box string, gen int64, temp string, log *slog.Logger) (*keptInstalls, error) {
	own := &keptInstalls{gen: gen, temp: temp, log: log}
	path, folder := strings.CutPrefix(place, "folder:")
	switch {
	case place == "" && (k.host == nil || oneMachine):
		return nil, nil //nolint:nilnil // no store was configured, which is no error
	case place == "":
		own.store = k.signed(temp)
		own.key = func(name string) string { return frame.InstallOwner + name } // the host adds the box's id to the key
	case folder && filepath.IsAbs(path):
		own.store = snapshot.NewFolder(path)
		own.key = func(name string) string { return snapshot.Key(box, frame.InstallOwner+name) }
	default:
		return nil, errors.New("DORMOUSE_INSTALLS: want folder: and an absolute path")
	}
	return own, nil
}
