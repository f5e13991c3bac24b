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

// imageSuffix ends the name of a file with the memory of a process.
const imageSuffix = ".memory"

// IsImage reports whether a path below a data folder is that of an image. No backup has one.
func IsImage(path string) bool {
	return strings.HasPrefix(path, "snapshots/") && strings.HasSuffix(path, imageSuffix)
}

// Images keeps the memory of processes beside their workspaces. Package memory says what is in
// an image. Here it is any bytes.
type Images struct {
	keeper *Keeper
	folder *Folder
}

// Image is an image that was opened. It stays readable after it was deleted.
type Image interface {
	io.ReadSeekCloser
	Name() string // in the store
	Size() int64  // in bytes
}

// Images returns where the memory of the Keeper's processes is kept, nil if its Store keeps
// none.
func (k *Keeper) Images() *Images {
	f, ok := k.cfg.Store.(*Folder)
	if !ok {
		return nil
	}
	return &Images{k, f}
}

// Save writes an image, and then packs the workspace of a process as it is when image returns.
// Both are kept or none: until both are written the earlier ones stay. If image fails, so does
// Save, with its error. The other arguments are those of [Keeper.Save].
func (i *Images) Save(ctx context.Context, process, owner, workspace, staged string, image func(io.Writer) error) error {
	k := i.keeper
	var frozen time.Time
	err := k.save(ctx, process, workspace, staged, func(w *kept, scanned func() (*os.Root, changes, error)) (changes, error) {
		var c changes
		err := i.folder.putWith(k.cfg.Key(owner), k.cfg.Generation, func(to io.Writer) error {
			err := image(to)
			frozen = time.Now()
			return err
		}, func(was string, to io.Writer) (same bool, err error) {
			root, now, err := scanned()
			if err != nil {
				return false, err
			}
			defer func() { _ = root.Close() }() // only read
			if c = now; was != "" && c.same(w.last) && time.Since(w.saved) < renewAfter {
				return true, nil
			}
			return false, pack(ctx, to, root, c)
		})
		if err == nil {
			k.log.Info("memory and workspace saved", "process", process, "files", len(c.put), "ms", time.Since(frozen).Milliseconds())
		}
		return c, err
	})
	if err == nil && frozen.IsZero() {
		err = errors.New("the workspace was never restored")
	}
	return err
}

// Open opens the image that is kept for an owner. It fails with [ErrNone] if there is none.
func (i *Images) Open(_ context.Context, owner string) (Image, error) {
	f, key := i.folder, i.keeper.cfg.Key(owner)
	if _, err := os.Stat(f.of(key)); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	unlock, err := f.lock()
	if err != nil {
		return nil, err
	}
	defer unlock() // an open file stays readable after it was claimed
	p, err := f.current(key)
	if err != nil {
		return nil, err
	}
	if p.Image == "" {
		return nil, ErrNone
	}
	file, err := os.Open(filepath.Join(f.of(key), p.Image))
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close() // only read
		return nil, err
	}
	return openImage{file, info.Size()}, nil
}

type openImage struct {
	*os.File
	size int64
}

// Name returns the name in the folder of the key.
func (o openImage) Name() string { return filepath.Base(o.File.Name()) }

// Size implements [Image].
func (o openImage) Size() int64 { return o.size }

// Claim deletes an image of an owner, and returns nil to at most one caller. From then on the
// store refuses what older generations save or claim. It fails with [ErrNone] if the image is
// not there any more, and with [ErrStale] for an older generation. An empty name deletes
// whatever image there is.
func (i *Images) Claim(_ context.Context, owner, name string) error {
	return i.folder.claim(i.keeper.cfg.Key(owner), i.keeper.cfg.Generation, name)
}

// claim takes an image out of the pointer of a key, and then deletes it. From the moment at
// which the pointer is written nobody else gets the image.
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
	case name != "" && p.Image != name:
		return ErrNone
	case p.Image == "" && p.Generation == gen:
		return nil // there is nothing to delete, and older generations are refused already
	}
	image := p.Image
	p.Generation, p.Image = gen, ""
	if err := f.step("claim"); err != nil {
		return err
	}
	dir := f.of(key)
	if err := os.MkdirAll(dir, 0o700); err != nil { // the first claim comes before the first save
		return err
	}
	if err := p.write(dir); err != nil {
		return err
	}
	if err := f.step("claimed"); err != nil {
		return err
	}
	if image != "" {
		// If the file stays, the next save removes it.
		_ = os.Remove(filepath.Join(dir, image))
	}
	return f.step("deleted")
}

// putWith saves an image, and then the archive of the workspace of that moment. archive gets
// the name of the present archive; if it returns same, that stays. Both become current at once,
// or none does.
func (f *Folder) putWith(key string, gen int64, image func(io.Writer) error, archive func(was string, to io.Writer) (same bool, err error)) (err error) {
	dir := f.of(key)
	var files []*os.File
	defer func() {
		for _, file := range files {
			_ = file.Close() // either it was synced, or it is of no use
			if err != nil {
				_ = os.Remove(file.Name()) // the error says more
			}
		}
		if err != nil {
			_ = os.Remove(dir) // fails if other snapshots are in it
		}
	}()
	put := func(suffix string, write func(io.Writer) error) (string, error) {
		file, err := f.begin(dir, suffix)
		if err != nil {
			return "", err
		}
		files = append(files, file)
		if err = write(file); err == nil {
			err = f.step("sync")
		}
		if err == nil {
			err = file.Sync()
		}
		return filepath.Base(file.Name()), err
	}
	p := pointer{Generation: gen}
	if p.Image, err = put(imageSuffix, image); err != nil {
		return err
	}
	was, err := f.current(key)
	if err != nil {
		return err
	}
	same := false
	if p.Object, err = put(suffix, func(to io.Writer) (err error) {
		same, err = archive(was.Object, to)
		return err
	}); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	if same {
		_ = os.Remove(filepath.Join(dir, p.Object)) // if it stays, the next save removes it
		p.Object = was.Object
	}
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return f.commit(key, p)
}

// Expire deletes the images of memory that are older than age, and returns how many.
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

// forgetImage deletes an image, and takes it out of its pointer first.
func forgetImage(image string) error {
	dir := filepath.Dir(image)
	p, err := pointerIn(dir)
	if err == nil && p.Image == filepath.Base(image) {
		p.Image = ""
		err = p.write(dir)
	}
	if err != nil && !errors.Is(err, ErrCorrupt) { // a damaged pointer gives nobody the image
		return err
	}
	return os.Remove(image)
}

// ForgetImage deletes an image that ImageFiles has named. The workspace stays.
func (f *Folder) ForgetImage(image string) error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := forgetImage(image); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // a process has claimed it meanwhile
}

// ImageFiles returns the paths of the images that are kept.
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
