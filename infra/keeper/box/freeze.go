package box

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
)

// Memory is the memory of a box's programs at the moment of a freeze. A Memory is in anonymous
// files, which take memory too. At most one box may be thawed from a Memory, because two would
// draw the same random numbers.
type Memory struct {
	Note  []byte      // data of the caller, stored with the memory
	files [3]*os.File // gVisor's state, its list of pages, and the pages
}

func newMemory() (_ *Memory, err error) {
	m := &Memory{}
	for n := range m.files {
		fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.files[n] = os.NewFile(uintptr(fd), "memory")
	}
	return m, nil
}

// Close frees the memory.
func (m *Memory) Close() error {
	var all error
	for _, f := range m.files {
		if f != nil {
			all = errors.Join(all, f.Close())
		}
	}
	return all
}

func (m *Memory) payload() urpc.FilePayload { return urpc.FilePayload{Files: m.files[:]} }

// An image of a Memory is the note and the files, each after its length in 8 bytes, and then a
// checksum of all. The checksum detects damage, but no manipulation.
var sums = crc32.MakeTable(crc32.Castagnoli)

// Write writes an image of the Memory.
func (m *Memory) Write(to io.Writer) error {
	sum := crc32.New(sums)
	to = io.MultiWriter(to, sum)
	part := func(size int64, from io.Reader) error {
		if err := binary.Write(to, binary.BigEndian, size); err != nil {
			return err
		}
		_, err := io.CopyBuffer(to, io.LimitReader(from, size), make([]byte, 1<<20))
		return err
	}
	if err := part(int64(len(m.Note)), strings.NewReader(string(m.Note))); err != nil {
		return err
	}
	for _, f := range m.files {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if err := part(info.Size(), io.NewSectionReader(f, 0, math.MaxInt64)); err != nil {
			return err
		}
	}
	return binary.Write(to, binary.BigEndian, sum.Sum32())
}

// ReadMemory reads an image to its end. ReadMemory takes no more memory than the image has bytes.
func ReadMemory(image io.Reader) (_ *Memory, err error) {
	m, err := newMemory()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("the image of the memory: %w", err), m.Close())
		}
	}()
	sum := crc32.New(sums)
	from := io.TeeReader(image, sum)
	part := func(to io.Writer, most int64) error {
		var size int64
		if err := binary.Read(from, binary.BigEndian, &size); err != nil {
			return err
		}
		if size < 0 || size > most {
			return errors.New("it is damaged")
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{to}, io.LimitReader(from, size), make([]byte, 1<<20))
		if err == nil && n < size {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	var note strings.Builder
	if err := part(&note, 64<<20); err != nil {
		return nil, err
	}
	m.Note = []byte(note.String())
	for _, f := range m.files {
		if err := part(f, math.MaxInt64); err != nil {
			return nil, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
	}
	want := sum.Sum32()
	var got uint32
	if err := binary.Read(image, binary.BigEndian, &got); err != nil {
		return nil, err
	}
	if got != want {
		return nil, errors.New("it is damaged")
	}
	if n, err := io.Copy(io.Discard, image); n > 0 || err != nil {
		return nil, errors.Join(err, errors.New("it goes on behind its end"))
	}
	return m, nil
}

// Freeze ends the box and returns its memory, which the caller closes. Freeze also saves what was
// written to the root, at the same moment. The box ends even if Freeze fails or ctx ends. If
// Freeze succeeds, Wait returns no error.
func (b *Box) Freeze(ctx context.Context) (_ *Memory, err error) {
	m, err := newMemory()
	if err != nil {
		return nil, errors.Join(err, b.freezeTo(nil))
	}
	stop := context.AfterFunc(ctx, func() { _ = b.cmd.Process.Kill() }) // fails if the process has ended
	defer stop()
	if err := b.freezeTo(m); err != nil {
		if ctx.Err() != nil {
			err = errors.New("it took too long")
		}
		return nil, errors.Join(fmt.Errorf("the box was not frozen: %s", first(err)), m.Close())
	}
	return m, nil
}

// freezeTo freezes the box and writes its memory to m. If m is nil, it ends the box and fails.
func (b *Box) freezeTo(m *Memory) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return errors.New("its program has ended")
	}
	b.over = true
	defer func() { _ = b.cmd.Process.Kill() }() // a paused box does not end by itself
	if m == nil {
		return errors.New("there is no memory for it")
	}
	if b.spec.Written != "" {
		if err := b.save(); err != nil {
			return err
		}
	}
	return b.does.Call(boot.ContMgrCheckpoint, &control.SaveOpts{Metadata: statefile.CompressionLevelNone.ToMetadata(), HavePagesFile: true, FilePayload: m.payload()}, nil)
}

// Thaw makes the programs of m go on in a box that Prepare has returned. The [Spec.Fit] of b must
// be that of the frozen box. Thaw fails if ctx ends first. After an error the box has ended. Its
// programs may have run for a moment, so the Memory must not be used again.
func (b *Box) Thaw(ctx context.Context, m *Memory) error {
	stop := context.AfterFunc(ctx, func() { _ = b.cmd.Process.Kill() }) // fails if the process has ended
	defer stop()
	err := b.connect(b.spec.Link)
	if err == nil {
		err = b.call(boot.ContMgrRestore, &boot.RestoreOpts{HavePagesFile: true, FilePayload: m.payload()}, nil)
	}
	if err == nil {
		err = b.enter()
	}
	if err != nil {
		b.Close() // after Close, said has everything that the processes wrote to stderr
		return fmt.Errorf("the memory did not thaw: %s", cmp.Or(b.said.line(), first(err)))
	}
	return nil
}

// first returns the first line of an error, without a sentry's stack.
func first(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line[:min(len(line), 500)]
}
