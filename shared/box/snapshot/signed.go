package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// SignedConfig configures a [Signed] store. Only Ask is required.
type SignedConfig struct {
	// Ask asks the host for the URLs to read from and to write to. The host remembers which snapshot
	// of a key, the Owner of the request, is the newest, and knows the generation of the runner that
	// asks. Only the host has rights in the bucket, so a runner can reach only the snapshots of its
	// own box. Each URL is for one snapshot, and is valid for a limited time. Errors: those of
	// [frame.Link].Snapshot.
	Ask func(context.Context, frame.Snapshot) (frame.Kept, error)
	// Temp is a folder outside of all workspaces, in which a snapshot is built before its upload,
	// because S3 must be told its size.
	Temp   string
	Client *http.Client // nil means a client that follows no redirects
	// Pauses are the waits between tries; nil means 200 ms and 1 s.
	Pauses []time.Duration
}

// Signed is a [Store] in S3, or in a compatible service, that uses presigned URLs. The URLs are
// secrets, which the errors of a Signed never contain. If the bytes of a snapshot differ from
// those that were saved, reading to the end fails with [ErrCorrupt].
type Signed struct{ cfg SignedConfig }

// NewSigned makes a Signed store, without I/O.
func NewSigned(c SignedConfig) *Signed {
	if c.Client == nil {
		c.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if c.Pauses == nil {
		c.Pauses = []time.Duration{200 * time.Millisecond, time.Second}
	}
	return &Signed{c}
}

var _ Store = (*Signed)(nil)

// ask asks the host about the snapshots of a key, and converts its errors into those of this package.
func (s *Signed) ask(ctx context.Context, key string, f frame.Snapshot) (frame.Kept, error) {
	f.Owner = key
	kept, err := s.cfg.Ask(ctx, f)
	switch {
	case errors.Is(err, storage.NotFound):
		err = fmt.Errorf("%w: %w", ErrNone, err)
	case errors.Is(err, storage.Fenced):
		err = fmt.Errorf("%w: %w", ErrStale, err)
	}
	return kept, err
}

// Get opens the newest snapshot of a key, which it reads from a URL of the host; see [Store].
func (s *Signed) Get(ctx context.Context, key string) (io.ReadCloser, time.Time, error) {
	var body io.ReadCloser
	var saved time.Time
	err := s.try(ctx, func() error {
		// Each try gets a new URL, because the previous one may have expired.
		newest, err := s.ask(ctx, key, frame.Snapshot{Op: frame.Get})
		if err != nil {
			return &final{err}
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, newest.URL, http.NoBody)
		if err != nil {
			return &final{withoutURL(err)}
		}
		answer, err := s.send(r)
		body, saved = &storeBody{answer, sha256.New(), newest.Sum}, time.UnixMilli(newest.Saved)
		return err
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("get the snapshot: %w", err)
	}
	return body, saved, nil
}

// Put saves a snapshot of a key, through a file in Temp; see [Store].
func (s *Signed) Put(ctx context.Context, key string, _ int64, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(s.cfg.Temp, "snapshot-*")
	if err != nil {
		return fmt.Errorf("make the snapshot: %w", err)
	}
	defer func() {
		_ = file.Close() // an error does not matter, the file is removed
		_ = os.Remove(file.Name())
	}()
	sum := sha256.New()
	if err := write(io.MultiWriter(file, sum)); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	var object string
	err = s.try(ctx, func() error {
		room, err := s.ask(ctx, key, frame.Snapshot{Op: frame.Put, Size: info.Size(), Sum: hex.EncodeToString(sum.Sum(nil))})
		if err != nil {
			return &final{err}
		}
		object = room.Object
		return s.put(ctx, room, file, info.Size())
	})
	if err != nil {
		return fmt.Errorf("put the snapshot: %w", err)
	}
	if _, err := s.ask(ctx, key, frame.Snapshot{Op: frame.Done, Object: object}); err != nil {
		return fmt.Errorf("save the snapshot: %w", err)
	}
	return nil
}

func (s *Signed) put(ctx context.Context, room frame.Kept, file *os.File, size int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, room.URL, http.NoBody)
	if err != nil {
		return &final{withoutURL(err)}
	}
	if size > 0 {
		// The client would close the file, so it gets only a reader of it.
		r.Body = io.NopCloser(io.NewSectionReader(file, 0, size))
		r.ContentLength = size
	}
	for name, value := range room.Header { // the signature covers these headers
		r.Header.Set(name, value)
	}
	body, err := s.send(r)
	if err != nil {
		return err
	}
	return body.Close()
}

// Delete makes the host remove the snapshot of a key; see [Store].
func (s *Signed) Delete(ctx context.Context, key string, _ int64) error {
	if _, err := s.ask(ctx, key, frame.Snapshot{Op: frame.Forget}); err != nil {
		return fmt.Errorf("delete the snapshot: %w", err)
	}
	return nil
}

// send sends a request, and returns the body of a response with status 200. The caller closes the
// body.
func (s *Signed) send(r *http.Request) (io.ReadCloser, error) {
	answer, err := s.cfg.Client.Do(r)
	if err != nil {
		return nil, withoutURL(err)
	}
	switch code := answer.StatusCode; {
	case code == http.StatusOK:
		return answer.Body, nil
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		err = fmt.Errorf("the store answers %d", code)
	case code == http.StatusNotFound:
		// Another runner may have saved after the URL was made, and so removed this object.
		err = fmt.Errorf("%w: the store has no such object", ErrNone)
	default:
		err = &final{fmt.Errorf("the store answers %d", code)}
	}
	// The error does not quote the response, which may repeat the signed URL.
	_ = answer.Body.Close()
	return nil, err
}

// storeBody is the body of a snapshot. Its errors contain no URLs. Reading to the end fails with
// [ErrCorrupt] if the SHA-256 differs from want.
type storeBody struct {
	io.ReadCloser
	sum  hash.Hash
	want string // in hexadecimal, "" if unknown
}

func (b *storeBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, _ = b.sum.Write(p[:n]) // never fails
	if !errors.Is(err, io.EOF) {
		return n, withoutURL(err)
	}
	if got := hex.EncodeToString(b.sum.Sum(nil)); b.want != "" && got != b.want {
		return n, corrupt("it has the digest %s, and %s was put", got, b.want)
	}
	return n, err
}

// final wraps an error after which [Signed.try] gives up.
type final struct{ error }

// try calls the function do until it succeeds, fails with a final error, or has been called once
// more than there are Pauses.
func (s *Signed) try(ctx context.Context, do func() error) error {
	for i := 0; ; i++ {
		err := do()
		if last, ok := errors.AsType[*final](err); ok {
			return last.error
		}
		if err == nil || i == len(s.cfg.Pauses) {
			return err
		}
		t := time.NewTimer(s.cfg.Pauses[i])
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// withoutURL removes the URL from an error, because its signature is a secret.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("reach the store: %w", u.Err)
	}
	return err
}
