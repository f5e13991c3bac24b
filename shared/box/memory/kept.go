package memory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
)

// Kept keeps the memory of the processes of one box.
type Kept struct {
	Store      *snapshot.Images
	Key        Tenant
	Box        string
	Generation int64
	Now        func() time.Time // nil: time.Now
}

// Process names a process whose memory is kept. Owner names its workspace.
type Process struct {
	Name, Owner       string
	Workspace, Staged string // see [snapshot.Keeper.Save]
	Fit               Fit
	Install           string
}

func (k *Kept) now() time.Time {
	if k.Now != nil {
		return k.Now()
	}
	return time.Now()
}

func (k *Kept) header(p Process) Header {
	return Header{Fit: p.Fit, Install: p.Install, Tenant: k.Key.name, Box: k.Box, Process: p.Name, Generation: k.Generation}
}

// Save keeps the memory of a process together with its workspace. freeze writes the memory,
// as [Control.Freeze] does, and returns the state of the conversation once the process has
// ended. size is the size of the image in bytes. After an error nothing new is kept.
func (k *Kept) Save(ctx context.Context, p Process, freeze func(ctx context.Context, memory io.Writer) (state any, err error)) (size int64, err error) {
	err = k.Store.Save(ctx, p.Name, p.Owner, p.Workspace, p.Staged, func(file io.Writer) error {
		bounded := &counter{to: file}
		sealed, err := newSealer(bounded, k.Key, k.header(p).sealed(k.now()))
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

// counter bounds the bytes of an image.
type counter struct {
	to io.Writer
	n  int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	if c.n += int64(len(p)); c.n > MaxBytes {
		return 0, lost("its image is over %d MiB", MaxBytes>>20)
	}
	return c.to.Write(p)
}

// Found is an image that fits a process.
type Found struct {
	kept   *Kept
	owner  string
	file   *snapshot.Image
	header Header
	raw    []byte // header, as it is in the image

	State json.RawMessage // of the conversation
	Saved time.Time
	Size  int64 // bytes in the store
}

// Find looks for the memory of a process, and checks all of its image: nothing that is damaged
// reaches a keeper. It fails with [snapshot.ErrNone], or with a [*LostError] for an image that cannot be
// used. In both cases the process starts anew, and what there was is deleted. The caller
// closes what Find returns.
func (k *Kept) Find(ctx context.Context, p Process) (f *Found, err error) {
	file, err := k.Store.Open(ctx, p.Owner)
	if err != nil {
		return nil, errors.Join(err, k.Store.Claim(ctx, p.Owner, ""))
	}
	defer func() {
		if err != nil {
			_ = file.Close() // it was only read
			err = errors.Join(err, k.Store.Claim(ctx, p.Owner, ""))
		}
	}()
	if file.Size() > MaxBytes {
		return nil, lost("its image is over %d MiB", MaxBytes>>20)
	}
	f = &Found{kept: k, owner: p.Owner, file: file, Size: file.Size()}
	if f.header, f.raw, err = readHeader(file); err != nil {
		return nil, err
	}
	if err := f.header.fits(k.header(p), k.now()); err != nil {
		return nil, err
	}
	f.Saved = f.header.Saved
	plain, done, err := f.plain()
	if err != nil {
		return nil, err
	}
	defer done()
	if err := copyChunks(io.Discard, plain); err != nil {
		return nil, unpacked(err)
	}
	var state bytes.Buffer
	if n, err := io.Copy(&state, io.LimitReader(plain, maxState+1)); err != nil || n > maxState {
		return nil, errors.Join(unpacked(err), tooLong(n))
	}
	f.State = state.Bytes()
	return f, nil
}

// maxState limits the state of a conversation, in bytes. It has what the process had not read.
const maxState = 64 << 20

func tooLong(n int64) error {
	if n > maxState {
		return lost("the state of its conversation is over %d MiB", maxState>>20)
	}
	return nil
}

// unpacked returns an error of the unpacker as that of a damaged image.
func unpacked(err error) error {
	var l *LostError
	if err == nil || errors.As(err, &l) {
		return err
	}
	return lost("its image cannot be read: %s", oneLine(err.Error()))
}

// plain returns the plain text of the image behind its header. The caller calls the function that
// it returns when the text is not read any more.
func (f *Found) plain() (io.Reader, func(), error) {
	o, err := newOpener(f.file, f.kept.Key, f.header, f.raw)
	if err != nil {
		return nil, nil, err
	}
	z, err := zstd.NewReader(o, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, nil, err
	}
	return z, z.Close, nil
}

// ClaimError says that an image could not be claimed. Nobody was given any of it.
type ClaimError struct{ error }

// Claim deletes the image, and calls thaw with the memory in it. If the image was deleted
// already, Claim fails with a [*ClaimError] and does not call thaw. So an image reaches at most
// one process.
func (f *Found) Claim(ctx context.Context, thaw func(context.Context, io.Reader) error) error {
	if err := f.kept.Store.Claim(ctx, f.owner, f.file.Name()); err != nil {
		return &ClaimError{lost("its image is gone: %s", oneLine(err.Error()))}
	}
	if _, err := f.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, raw, err := readHeader(f.file); err != nil || !bytes.Equal(raw, f.raw) {
		return &ClaimError{errors.Join(lost("its image was changed while it was read"), err)}
	}
	plain, done, err := f.plain()
	if err != nil {
		return err
	}
	defer done()
	return thaw(ctx, plain)
}

// Close closes the image. An image that was not claimed stays in the store.
func (f *Found) Close() { _ = f.file.Close() }
