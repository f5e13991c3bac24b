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

// Remembers reports whether the Keeper can also store the memory of processes: its Store is a
// [Folder]. If not, the methods about images must not be called.
func (k *Keeper) Remembers() bool { return k.folder != nil }

// SaveImage lets the function freeze write a memory image, and packs the workspace after that. Until
// both are written, the earlier ones stay current. If freeze fails, SaveImage returns the error of
// freeze. The other arguments are those of [Keeper.Save].
func (k *Keeper) SaveImage(ctx context.Context, process, owner, workspace, staged string, freeze func(io.Writer) error) error {
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
	err = k.folder.put(k.cfg.Key(owner), k.cfg.Generation, func(to io.Writer) error {
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

// OpenImage opens the memory image that is stored for an owner. The file stays readable after the
// image was deleted. OpenImage fails with [ErrNone] if there is no image.
func (k *Keeper) OpenImage(owner string) (*os.File, fs.FileInfo, error) {
	return k.folder.open(k.cfg.Key(owner), func(p pointer) string { return p.Image })
}

// ClaimImage deletes the owner's image in the file with this name, and succeeds for at most one
// caller. After a claim the store refuses saves and claims of older generations. ClaimImage fails
// with [ErrNone] if the image is gone, and with [ErrStale] if a newer generation has saved or
// claimed. If name is "", ClaimImage deletes any image of the owner.
//
// ClaimImage first removes the image from the pointer, so that nobody else can get it.
func (k *Keeper) ClaimImage(owner, name string) error {
	f, key, gen := k.folder, k.cfg.Key(owner), k.cfg.Generation
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
