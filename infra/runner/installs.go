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

// Limits of kept installs.
const (
	maxInstallBytes = 512 << 20 // of all files
	maxInstallFiles = 50_000
	uploadTime      = time.Minute
	unpackTime      = 20 * time.Second // after this time a start installs anew instead of unpacking
)

// keptInstalls keeps what npx and uvx install beside the workspaces of the box. Only this
// box gets them back, because the host gives a box no URLs of other boxes. The runner
// packs an install, and takes its digest, before the server runs. A server that can write
// where the runner can may spoil the upload, but a later start then notices a wrong
// digest.
type keptInstalls struct {
	store snapshot.Store
	key   func(name string) string
	gen   int64
	temp  string // a folder outside of the workspaces
	log   *slog.Logger
	guard *guard.Guard // nil in a program that has one box

	uploads atomic.Int64 // that have not ended
}

var _ provision.Kept = (*keptInstalls)(nil)

// Unpack implements provision.Kept. It also removes an install that is damaged, so that
// the next one can be kept.
func (k *keptInstalls) Unpack(ctx context.Context, name, folder string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, unpackTime)
	defer cancel()
	archive, _, err := k.store.Get(ctx, k.key(name), k.gen)
	if errors.Is(err, snapshot.ErrNone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = archive.Close() }() // only read
	err = snapshot.Unpack(ctx, archive, folder, installLimits())
	if errors.Is(err, snapshot.ErrCorrupt) {
		err = errors.Join(err, k.store.Delete(ctx, k.key(name), k.gen))
	}
	return err == nil, err
}

// Pack implements provision.Kept. It uploads in the background; the box stays awake
// meanwhile.
func (k *keptInstalls) Pack(ctx context.Context, name, folder string) (err error) {
	file, err := os.CreateTemp(k.temp, "install-*")
	if err != nil {
		return err
	}
	// Without a name no process of the box finds the file.
	if err = os.Remove(file.Name()); err == nil {
		err = snapshot.Pack(ctx, file, folder, installLimits())
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = file.Close() // the archive is incomplete, and nobody uses it
		return fmt.Errorf("pack an install: %w", err)
	}
	k.uploads.Add(1)
	k.guard.Go(func() { k.upload(context.WithoutCancel(ctx), name, file) })
	return nil
}

func (k *keptInstalls) upload(ctx context.Context, name string, file *os.File) {
	defer k.uploads.Add(-1)
	defer func() { _ = file.Close() }() // it has no name
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

// busy reports whether an upload has not ended. A nil keptInstalls is never busy.
func (k *keptInstalls) busy() bool { return k != nil && k.uploads.Load() > 0 }

func installLimits() snapshot.Limits {
	return snapshot.Limits{Bytes: maxInstallBytes, Files: maxInstallFiles}
}

// installsOf returns what keeps the installs of a box. If where is "", the host keeps them, as it
// keeps workspaces. On one machine (local) nobody needs to, because all boxes share the install
// cache of the machine. Otherwise where is "folder:" and the absolute path of a folder that keeps
// them. installsOf returns nil if no installs are kept.
func (k keeping) installsOf(where string, local bool, box string, gen int64, temp string, log *slog.Logger) (*keptInstalls, error) {
	own := &keptInstalls{gen: gen, temp: temp, log: log}
	path, folder := strings.CutPrefix(where, "folder:")
	switch {
	case where == "" && (k.host == nil || local):
		return nil, nil //nolint:nilnil // no place for installs is set, which is no error
	case where == "":
		own.store = snapshot.NewSigned(snapshot.SignedConfig{Host: k.host, Temp: temp})
		own.key = func(name string) string { return frame.InstallOwner + name } // the host knows which box asks
	case folder && filepath.IsAbs(path):
		own.store = snapshot.NewFolder(path)
		own.key = func(name string) string { return snapshot.Key(box, frame.InstallOwner+name) }
	default:
		return nil, errors.New("DORMOUSE_INSTALLS: want folder: and an absolute path")
	}
	return own, nil
}
