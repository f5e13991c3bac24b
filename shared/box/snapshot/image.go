package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// imageSuffix is the suffix of a file with the memory of a process.
const imageSuffix = ".memory"

// IsImage reports whether a path, relative to a data folder, is that of a memory image. Backups
// leave out these files.
func IsImage(path string) bool {
	return strings.HasPrefix(path, "snapshots/") && strings.HasSuffix(path, imageSuffix)
}

// Images stores the memory of processes beside their workspaces.
type Images struct {
	keeper *Keeper
	folder *Folder
}

// Images returns the store for the memory of the Keeper's processes, nil if the Keeper's Store is
// no [Folder].
func (k *Keeper) Images() *Images {
	f, ok := k.cfg.Store.(*Folder)
	if !ok {
		return nil
	}
	return &Images{k, f}
}

// Save lets the function freeze write a memory image, and packs the workspace after that. Until
// both are written, the earlier ones stay current. If freeze fails, Save returns the error of
// freeze. The other arguments are those of [Keeper.Save].
func (i *Images) Save(ctx context.Context, process, owner, workspace, staged string, freeze func(io.Writer) error) error {
	k := i.keeper
	w := k.of(process)
	if w == nil {
		return errors.New("the workspace was never restored")
	}
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return fmt.Errorf("save the workspace: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	var c changes
	var frozen time.Time
	err = i.folder.put(k.cfg.Key(owner), k.cfg.Generation, func(to io.Writer) error {
		err := freeze(to)
		frozen = time.Now()
		return err
	}, func(present string) (func(io.Writer) error, error) {
		var err error
		if c, err = k.changed(ctx, root, staged); err != nil {
			return nil, err
		}
		if present != "" && c.same(w.last) && time.Since(w.saved) < renewAfter {
			return nil, nil //nolint:nilnil // keep the present archive
		}
		return func(to io.Writer) error { return pack(ctx, to, root, c) }, nil
	})
	if err != nil {
		return fmt.Errorf("save the workspace: %w", err)
	}
	w.last, w.saved = c, time.Now()
	k.log.Info("memory and workspace saved", "process", process, "files", len(c.put), "ms", time.Since(frozen).Milliseconds())
	return nil
}

// Open opens the memory image that is stored for an owner, and returns its size in bytes. The file
// stays readable after the image was deleted. Open fails with [ErrNone] if there is no image.
func (i *Images) Open(_ context.Context, owner string) (file *os.File, size int64, err error) {
	file, info, err := i.folder.open(i.keeper.cfg.Key(owner), func(p pointer) string { return p.Image })
	if err != nil {
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// Claim deletes the owner's image in the file with this name, and succeeds for at most one caller. After a
// claim the store refuses saves and claims of older generations. Claim fails with [ErrNone] if the
// image is gone, and with [ErrStale] if a newer generation has saved or claimed. If name is "",
// Claim deletes any image of the owner.
func (i *Images) Claim(_ context.Context, owner, name string) error {
	return i.folder.claim(i.keeper.cfg.Key(owner), i.keeper.cfg.Generation, name)
}

// claim removes an image from the pointer of a key, so that nobody else can get the image, and
// then deletes the file.
func (f *Folder) claim(key string, gen int64, name string) error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	p, err := f.current(key)
	switch {
	case err != nil:
		return err
	case p.Generation > gen:
		return fmt.Errorf("generation %d, and there was one of %d: %w", gen, p.Generation, ErrStale)
	case name != "" && p.Image != filepath.Base(name):
		return ErrNone
	case p.Image == "" && p.Generation == gen:
		return nil // there is nothing to delete, and gen is already recorded
	}
	image := p.Image
	p.Generation, p.Image = gen, ""
	if err := f.step("claim"); err != nil {
		return err
	}
	dir := f.of(key)
	if err := os.MkdirAll(dir, 0o700); err != nil { // a claim may come before the first save
		return err
	}
	if err := p.write(dir); err != nil {
		return err
	}
	if err := f.step("claimed"); err != nil {
		return err
	}
	if image != "" {
		// If the file remains, the next save removes it.
		_ = os.Remove(filepath.Join(dir, image))
	}
	return f.step("deleted")
}

// Expire deletes memory images that are older than age, and returns their number.
func (f *Folder) Expire(_ context.Context, age time.Duration) (int, error) {
	old, err := filepath.Glob(filepath.Join(f.path, "*", "*"+imageSuffix))
	if err != nil || len(old) == 0 {
		return 0, err
	}
	unlock, err := f.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	n := 0
	for _, image := range old {
		if info, err := os.Stat(image); err != nil || time.Since(info.ModTime()) < age {
			continue
		}
		if err := forgetImage(image); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// forgetImage deletes an image, after it has removed the image's name from the pointer.
func forgetImage(image string) error {
	dir := filepath.Dir(image)
	p, err := pointerIn(dir)
	if err == nil && p.Image == filepath.Base(image) {
		p.Image = ""
		err = p.write(dir)
	}
	if err != nil && !errors.Is(err, ErrCorrupt) { // nobody can get the image through a damaged pointer
		return err
	}
	return os.Remove(image)
}

// ForgetImage deletes an image by a path that ImageFiles has returned, but not the workspace.
func (f *Folder) ForgetImage(image string) error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := forgetImage(image); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // a process has claimed the image meanwhile
}

// ImageFiles returns the paths of the stored memory images.
func (f *Folder) ImageFiles() []string {
	pointers, _ := filepath.Glob(filepath.Join(f.path, "*", pointerFile)) // the pattern is well formed
	var all []string
	for _, at := range pointers {
		dir := filepath.Dir(at)
		if p, err := pointerIn(dir); err == nil && p.Image != "" {
			all = append(all, filepath.Join(dir, p.Image))
		}
	}
	return all
}
