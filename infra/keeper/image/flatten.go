package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/erofs/go-erofs"
	"github.com/klauspost/compress/zstd"
)

// Limits limit the size of an unpacked image.
type Limits struct {
	Bytes   int64 // of all files together
	Entries int   // files, folders and links
}

// flat writes the layers of an image as one file system. The newest layer is added first, so flat
// knows which entries of an older layer are replaced or removed.
type flat struct {
	out    *erofs.Writer
	limits Limits
	bytes  int64
	count  int

	seen   map[string]bool // paths of the entries so far; true if the entry hides everything below its path in older layers
	opaque map[string]bool // folders whose contents in older layers are hidden
}

func newFlat(out *erofs.Writer, of Store) *flat {
	ours := map[string]bool{resolver: true, hosts: true, of.InitPath: true} // flat.surround makes these files
	return &flat{out: out, limits: of.Limits, seen: ours, opaque: map[string]bool{}}
}

// Special names in the tar files of layers: ".wh.NAME" removes NAME of older layers, and emptied
// removes all contents of its folder in older layers.
const (
	removed = ".wh."
	emptied = ".wh..wh..opq"
)

// layer adds the layer in a tar file, which may be compressed.
func (f *flat) layer(file string) error {
	opaque := map[string]bool{} // folders whose contents in older layers this layer hides
	own := map[string]bool{}    // regular files of this layer that were written
	var links []*tar.Header
	err := eachEntry(file, func(h *tar.Header, r io.Reader) error {
		if f.count++; f.count > f.limits.Entries {
			return fmt.Errorf("the image has more than %d entries", f.limits.Entries)
		}
		p, err := cleaned(h.Name)
		if err != nil || p == "/" && h.Typeflag != tar.TypeDir {
			return err
		}
		dir, base := path.Split(p)
		switch {
		case base == emptied:
			opaque[path.Clean(dir)] = true
			return nil
		case strings.HasPrefix(base, removed):
			if p = dir + strings.TrimPrefix(base, removed); !f.hidden(p) {
				f.seen[p] = true
			}
			return nil
		case f.hidden(p):
			return nil
		case h.Typeflag == tar.TypeLink:
			links = append(links, h)
		}
		f.seen[p] = h.Typeflag != tar.TypeDir
		own[p] = h.Typeflag == tar.TypeReg
		return f.add(p, h, r)
	})
	if err != nil {
		return err
	}
	for dir := range opaque {
		f.opaque[dir] = true
	}
	return f.links(file, links, own)
}

// hidden reports whether a newer layer has removed or replaced the path.
func (f *flat) hidden(p string) bool {
	if _, ok := f.seen[p]; ok {
		return true
	}
	for dir := path.Dir(p); ; dir = path.Dir(dir) {
		if f.seen[dir] || f.opaque[dir] {
			return true
		}
		if dir == "/" {
			return false
		}
	}
}

// add writes one entry. It skips devices in /dev, which every box has, and hard links, which
// flat.links writes.
func (f *flat) add(p string, h *tar.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		if _, err := f.out.Stat(p); err != nil {
			if err := f.out.Mkdir(p, 0o755); err != nil {
				return err
			}
		}
	case tar.TypeReg:
		return f.file(p, h, r)
	case tar.TypeSymlink:
		if err := f.out.Symlink(h.Linkname, p); err != nil {
			return err
		}
		return errors.Join(f.out.Chown(p, h.Uid, h.Gid), f.out.Chtimes(p, h.ModTime, h.ModTime))
	case tar.TypeLink:
		return nil
	default:
		if strings.HasPrefix(p, "/dev/") {
			return nil // every box has its own /dev
		}
		return fmt.Errorf("%s is a device or a pipe, which an image must not have", p)
	}
	return f.describe(p, h)
}

// describe sets the mode, the owner and the time of an entry.
func (f *flat) describe(p string, h *tar.Header) error {
	return errors.Join(f.out.Chmod(p, h.FileInfo().Mode()), f.out.Chown(p, h.Uid, h.Gid), f.out.Chtimes(p, h.ModTime, h.ModTime))
}

func (f *flat) file(p string, h *tar.Header, r io.Reader) error {
	if f.bytes += h.Size; f.bytes > f.limits.Bytes {
		return fmt.Errorf("the image is larger than %d MB", f.limits.Bytes>>20)
	}
	out, err := f.out.Create(p)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, r); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return f.describe(p, h)
}

// links writes the hard links of a layer as copies, because the EROFS writer does not support hard
// links. The map own has the files of the layer that were written. If a newer layer hides the target
// of a link, links reads the target from the layer's tar file again.
func (f *flat) links(file string, links []*tar.Header, own map[string]bool) error {
	hidden := map[string][]*tar.Header{}
	for _, h := range links {
		p, _ := cleaned(h.Name) // the name was checked before
		target, err := cleaned(h.Linkname)
		if err != nil {
			return err
		}
		if !own[target] {
			hidden[target] = append(hidden[target], h)
			continue
		}
		from, err := f.out.Open(target)
		if err != nil {
			return fmt.Errorf("%s is a link: %w", p, err)
		}
		info, err := from.Stat()
		if err == nil {
			h.Size = info.Size()
			err = f.file(p, h, from)
		}
		if err := errors.Join(err, from.Close()); err != nil {
			return err
		}
		own[p] = true
	}
	if len(hidden) == 0 {
		return nil
	}
	err := eachEntry(file, func(h *tar.Header, r io.Reader) error {
		target, _ := cleaned(h.Name)
		if h.Typeflag != tar.TypeReg || len(hidden[target]) == 0 {
			return nil
		}
		first, others := hidden[target][0], hidden[target][1:]
		delete(hidden, target)
		p, _ := cleaned(first.Name)
		first.Size = h.Size
		if err := f.file(p, first, r); err != nil {
			return err
		}
		for _, h := range others {
			h.Linkname = first.Name
		}
		return f.links(file, others, map[string]bool{p: true})
	})
	for target := range hidden {
		err = errors.Join(err, fmt.Errorf("a hard link leads to %s, which is no file of its layer", target))
	}
	return err
}

// eachEntry calls fn for each entry of a tar file. The file may be compressed with gzip or zstd.
func eachEntry(file string, fn func(*tar.Header, io.Reader) error) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // nothing was written
	r := bufio.NewReaderSize(in, 1<<16)
	var plain io.Reader = r
	switch magic, _ := r.Peek(4); {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		plain = z
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return err
		}
		defer z.Close()
		plain = z
	}
	for t := tar.NewReader(plain); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(h, t); err != nil {
			return err
		}
	}
}

// cleaned returns the absolute path of an entry in the image.
func cleaned(name string) (string, error) {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf("the path %q leads out of the image", name)
	}
	return path.Clean("/" + name), nil
}

// The files that configure the network, which are the same in every box.
const (
	resolver = "/etc/resolv.conf"
	hosts    = "/etc/hosts"
)

// finish completes the file system, and returns the SHA-256 of its file in hexadecimal.
func (f *flat) finish(file *os.File) (sum string, err error) {
	if err := f.out.Close(); err != nil {
		return "", err
	}
	if err := Mappable(file); err != nil {
		return "", err
	}
	return sumOf(file)
}

// surround adds the folders and files that every box needs.
func (f *flat) surround(of Store) error {
	for dir, mode := range map[string]fs.FileMode{"/proc": 0o555, "/dev": 0o755, "/sys": 0o555, "/tmp": 0o777 | fs.ModeSticky, "/etc": 0o755} {
		if info, err := f.out.Stat(dir); err == nil {
			if !info.IsDir() {
				return fmt.Errorf("%s of the image is no folder", dir)
			}
			continue
		}
		if err := f.out.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := f.out.Chmod(dir, mode); err != nil {
			return err
		}
	}
	for p, text := range map[string]string{resolver: "nameserver " + of.Nameserver + "\n", hosts: "127.0.0.1 localhost\n", of.InitPath: string(of.Init)} {
		if p == "" {
			continue
		}
		h := &tar.Header{Name: p, Size: int64(len(text)), Mode: 0o644}
		if p == of.InitPath {
			h.Mode = 0o555
		}
		if err := f.file(p, h, strings.NewReader(text)); err != nil {
			return err
		}
	}
	return nil
}
