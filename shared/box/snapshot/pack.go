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

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Names of PAX records in an archive, and the versions of archives.
const (
	recordVersion = "DORMOUSE.snapshot"
	recordEntries = "DORMOUSE.entries"
	recordGone    = "DORMOUSE.gone"

	version = "1" // the version of the archive of a workspace

	// wholeVersion is the version of the archive of a whole folder, which Pack writes. The archive
	// is compressed with S2, which unpacks faster than zstd and takes a fifth more space: a box
	// that starts has only a part of a CPU. Entries have short tar headers where their names fit,
	// and files have no times.
	wholeVersion = "whole-1"
	// blockBytes is how many bytes S2 compresses at a time.
	blockBytes = 1 << 20
)

var errMoved = errors.New("it was changed while it was saved")

func pack(ctx context.Context, w io.Writer, root *os.Root, c changes) error {
	// One goroutine and a small window are enough, because workspaces and most of their files are
	// small.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return err
	}
	return packer{ctx: ctx, root: root, out: tar.NewWriter(z)}.all(z, c)
}

// Pack writes a whole folder to w. Unlike a snapshot, the archive includes all names, links that
// lead out of the folder, and files with hard links outside of it, but not the times of files.
// Pack fails with a [*LimitError] if the folder exceeds limits. Pack also fails if the folder is
// changed meanwhile, or if an entry cannot be read.
func Pack(ctx context.Context, w io.Writer, folder string, limits Limits) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	limits = limits.withDefaults()
	now, err := scan(ctx, root, limits, true)
	if err != nil {
		return err
	}
	c, err := compare(nil, now, limits)
	if err != nil {
		return err
	}
	if c.leftOut > 0 {
		return fmt.Errorf("%d entries of the folder cannot be read", c.leftOut)
	}
	z := s2.NewWriter(w, s2.WriterBetterCompression(), s2.WriterConcurrency(1), s2.WriterBlockSize(blockBytes))
	return packer{ctx: ctx, root: root, out: tar.NewWriter(z), whole: true}.all(z, c)
}

type packer struct {
	ctx  context.Context
	root *os.Root
	out  *tar.Writer

	whole bool // writes the archive of a whole folder, see [Pack]
}

// all writes the whole archive, and closes the compressor z.
func (p packer) all(z io.Closer, c changes) (err error) {
	defer func() { err = errors.Join(err, z.Close()) }()
	of := version
	if p.whole {
		of = wholeVersion
	}
	err = p.out.WriteHeader(&tar.Header{
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
	// Links come last, so that unpacking never writes through a link.
	for _, links := range []bool{false, true} {
		for _, name := range c.put.names() {
			if e := c.put[name]; (e.Mode.Type() == fs.ModeSymlink) == links {
				if err := p.entry(name, e); err != nil {
					return fmt.Errorf("%q: %w", name, err)
				}
			}
		}
	}
	return p.out.Close()
}

func (p packer) entry(name string, e entry) error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(e.Mode.Perm()), Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: e.Size, ModTime: e.Time}
	if p.whole { // these values lead to the shortest header
		h.Format, h.ModTime = tar.FormatUnknown, time.Time{}
	}
	switch e.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
	default:
		return p.file(h, e)
	}
	return p.out.WriteHeader(h)
}

// file writes a file to the archive, or fails with errMoved if the file has changed since it was
// scanned.
func (p packer) file(h *tar.Header, e entry) error {
	// A process may have replaced the file with a pipe since the scan. Opening a pipe must not
	// block.
	f, err := p.root.OpenFile(h.Name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errMoved
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written
	if now, err := lookAt(f); err != nil || !now.same(e.State) {
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
	if now, err := lookAt(f); err != nil || !now.same(e.State) {
		return errors.Join(errMoved, err)
	}
	return nil
}

func lookAt(f *os.File) (State, error) {
	info, err := f.Stat()
	if err != nil {
		return State{}, err
	}
	return StateOf(info, ""), nil
}

// reader is a reader that fails with the cause of its context once that has ended.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
