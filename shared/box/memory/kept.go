package memory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
)

// Kept stores the memory of the processes of one box, encrypted.
type Kept struct {
	Store      *snapshot.Keeper // must remember: see [snapshot.Keeper.Remembers]
	Key        Tenant
	Box        string
	Generation int64
}

// Process describes a process whose memory is stored. Owner is the name under which its workspace
// is stored.
type Process struct {
	Name, Owner       string
	Workspace, Staged string // the workspace, and the file that lists what was put into it before the start
	Fit               Fit
	Install           string
}

func (k *Kept) header(p Process) Header {
	return Header{Fit: p.Fit, Install: p.Install, Tenant: k.Key.name, Box: k.Box, Process: p.Name, Generation: k.Generation}
}

// Save stores the memory of a process together with its workspace. The function freeze ends the
// process, writes its memory, as [Control.Freeze] does, and returns the state of the conversation.
// The result size is that of the image in bytes. After an error nothing new is stored.
func (k *Kept) Save(ctx context.Context, p Process, freeze func(ctx context.Context, memory io.Writer) (state any, err error)) (size int64, err error) {
	err = k.Store.SaveImage(ctx, p.Name, p.Owner, p.Workspace, p.Staged, func(file io.Writer) error {
		bounded := &counter{to: file}
		sealed, err := newSealer(bounded, k.Key, k.header(p).sealed())
		if err != nil {
			return err
		}
		packed, err := zstd.NewWriter(sealed, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
		if err != nil {
			return err
		}
		state, err := freeze(ctx, packed)
		if err == nil {
			err = json.NewEncoder(packed).Encode(state)
		}
		if err == nil {
			err = packed.Close()
		}
		if err == nil {
			err = sealed.Close()
		}
		size = bounded.n
		return err
	})
	return size, err
}

// counter is a writer that fails with a [*LostError] when an image gets larger than MaxBytes.
type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(p []byte) (int, error) {
	if c.n += int64(len(p)); c.n > MaxBytes {
		return 0, lost("its image is over %d MiB", MaxBytes>>20)
	}
	return c.to.Write(p)
}

// Found is a stored image that fits a process.
type Found struct {
	kept   *Kept
	owner  string
	file   *os.File
	header Header
	raw    []byte // header as it is encoded in the image

	State json.RawMessage // the state of the conversation, as freeze returned it to Save
	Saved time.Time
	Size  int64 // size of the image in bytes
}

// Find looks for the stored memory of a process, and verifies all of the image, so that a keeper
// never gets a damaged one. Find fails with [snapshot.ErrNone] if there is no image, and with a
// [*LostError] if the image cannot be used. After an error the image is deleted, and the process
// must start anew. The caller closes what Find returns.
func (k *Kept) Find(p Process) (f *Found, err error) {
	file, info, err := k.Store.OpenImage(p.Owner)
	if err != nil {
		return nil, errors.Join(err, k.Store.ClaimImage(p.Owner, ""))
	}
	defer func() {
		if err != nil {
			_ = file.Close() // nothing was written
			err = errors.Join(err, k.Store.ClaimImage(p.Owner, ""))
		}
	}()
	if info.Size() > MaxBytes {
		return nil, lost("its image is over %d MiB", MaxBytes>>20)
	}
	f = &Found{kept: k, owner: p.Owner, file: file, Size: info.Size()}
	if f.header, f.raw, err = readHeader(file); err != nil {
		return nil, err
	}
	if err := f.header.fits(k.header(p)); err != nil {
		return nil, err
	}
	f.Saved = f.header.Saved
	plain, err := f.plain()
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	if err := copyChunks(io.Discard, plain); err != nil {
		return nil, unpacked(err)
	}
	var state bytes.Buffer
	n, err := io.Copy(&state, io.LimitReader(plain, maxState+1))
	if err == nil && n > maxState {
		err = lost("the state of its conversation is over %d MiB", maxState>>20)
	}
	if err != nil {
		return nil, unpacked(err)
	}
	f.State = state.Bytes()
	return f, nil
}

// maxState is how many bytes the state of a conversation may have, including what the process had
// not read.
const maxState = 64 << 20

// unpacked returns an error of the decompressor as a [*LostError] about a damaged image.
func unpacked(err error) error {
	if _, ok := errors.AsType[*LostError](err); ok {
		return err
	}
	return lost("its image cannot be read: %s", oneLine(err.Error()))
}

// plain returns a reader of the decrypted and decompressed image, after its header. The caller
// closes it.
func (f *Found) plain() (*zstd.Decoder, error) {
	o, err := newOpener(f.file, f.kept.Key, f.header, f.raw)
	if err != nil {
		return nil, err
	}
	return zstd.NewReader(o, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
}

// Claim deletes the image from the store, and returns its memory for [Control.Thaw]. Claim fails if the
// image was already deleted: at most one process gets an image. The caller closes the memory.
func (f *Found) Claim() (memory io.ReadCloser, err error) {
	if err := f.kept.Store.ClaimImage(f.owner, f.file.Name()); err != nil {
		return nil, lost("its image is gone: %s", oneLine(err.Error()))
	}
	if _, err := f.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if _, raw, err := readHeader(f.file); err != nil || !bytes.Equal(raw, f.raw) {
		return nil, errors.Join(lost("its image was changed while it was read"), err)
	}
	plain, err := f.plain()
	if err != nil {
		return nil, err
	}
	return plain.IOReadCloser(), nil
}

// Close closes the file of the image. An image that was not claimed stays in the store.
func (f *Found) Close() { _ = f.file.Close() }
