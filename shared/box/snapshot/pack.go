package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Records of the archive, and its version.
const (
	recordVersion = "DORMOUSE.snapshot"
	recordEntries = "DORMOUSE.entries"
	recordGone    = "DORMOUSE.gone"

	version = "1"
)

// errMoved says that the workspace changed while it was saved.
var errMoved = errors.New("it was changed while it was saved")

// pack writes the changes as an archive.
func pack(ctx context.Context, w io.Writer, root *os.Root, now tree, c changes) error {
	// Use one goroutine and a small window: workspaces are small, and so are most files.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return err
	}
	p := packer{ctx: ctx, root: root, out: tar.NewWriter(z)}
	err = p.all(now, c)
	if err == nil {
		err = p.out.Close()
	}
	if err != nil {
		_ = z.Close() // what was written is of no use
		return err
	}
	return z.Close()
}

type packer struct {
	ctx  context.Context
	root *os.Root
	out  *tar.Writer

	whole bool // see [Pack]
}

func (p packer) all(now tree, c changes) error {
	of := version
	if p.whole {
		of = wholeVersion
	}
	err := p.out.WriteHeader(&tar.Header{
		Typeflag: tar.TypeXGlobalHeader, Name: "dormouse",
		PAXRecords: map[string]string{recordVersion: of, recordEntries: strconv.Itoa(len(c.gone) + len(c.put))},
	})
	if err != nil {
		return err
	}
	for _, name := range c.gone {
		err := p.out.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: name, Format: tar.FormatPAX, PAXRecords: map[string]string{recordGone: "1"},
		})
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	// Links come last, so that unpacking never writes through one.
	for _, links := range []bool{false, true} {
		for _, name := range c.put {
			if e := now[name]; (e.mode.Type() == fs.ModeSymlink) == links {
				if err := p.entry(name, e); err != nil {
					return fmt.Errorf("%q: %w", name, err)
				}
			}
		}
	}
	return nil
}

func (p packer) entry(name string, e entry) error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(e.mode.Perm()), Format: tar.FormatPAX}
	switch e.mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	default:
		h.Typeflag, h.Size, h.ModTime = tar.TypeReg, e.size, e.time
	}
	if p.whole { // the shortest header
		h.Format, h.ModTime = tar.FormatUnknown, time.Time{}
	}
	if h.Typeflag == tar.TypeReg {
		return p.file(h, e)
	}
	return p.out.WriteHeader(h)
}

// file writes a file to the archive. It fails with errMoved if the file is not the one
// that was scanned.
func (p packer) file(h *tar.Header, e entry) error {
	// A process may have put a pipe here since the scan, and opening a pipe must not
	// block.
	f, err := p.root.OpenFile(h.Name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errMoved
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	if now, err := lookAt(f); err != nil || !now.same(e) {
		return errors.Join(errMoved, err)
	}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(p.out, reader{p.ctx, f}, h.Size)
	if errors.Is(err, io.EOF) {
		return errMoved
	}
	if err != nil {
		return err
	}
	if now, err := lookAt(f); err != nil || !now.same(e) {
		return errors.Join(errMoved, err)
	}
	return nil
}

// lookAt returns the entry of an open file.
func lookAt(f *os.File) (entry, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return entry{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return entry{}, err
	}
	return entry{
		mode: info.Mode() & (fs.ModeType | fs.ModePerm), size: info.Size(), time: info.ModTime(), inode: st.Ino,
	}, nil
}

// reader fails when its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
