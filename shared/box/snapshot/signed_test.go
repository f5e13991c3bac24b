package snapshot

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// bucket behaves like S3 for presigned GET and PUT. It is also the host that gives out the
// URLs.
type bucket struct {
	t   *testing.T
	url string

	mu      sync.Mutex
	objects map[string]string
	sums    map[string]string // by object, as the runner sent them
	newest  map[string]pointer
	gen     int64
	rooms   int
	trouble []int // answers to the next requests
	cut     bool  // the connection of the next answer is cut in the middle
	before  func()
}

const signature = "X-Amz-Signature=s3cret"

func newBucket(t *testing.T) *bucket {
	t.Helper()
	b := &bucket{t: t, objects: map[string]string{}, sums: map[string]string{}, newest: map[string]pointer{}}
	s := httptest.NewServer(b)
	t.Cleanup(s.Close)
	b.url = s.URL
	return b
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if b.before != nil {
		b.before()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name := strings.TrimPrefix(r.URL.Path, "/")
	switch {
	case len(b.trouble) > 0:
		code := b.trouble[0]
		b.trouble = b.trouble[1:]
		w.Header().Set("Location", "http://127.0.0.1:1/elsewhere") // of a redirect
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "<Error>"+r.URL.String()+"</Error>")
	case r.URL.RawQuery != signature+"&for="+r.Method:
		w.WriteHeader(http.StatusForbidden)
	case r.Method == http.MethodGet:
		text, ok := b.objects[name]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		if b.cut {
			text = text[:len(text)/2]
		}
		_, _ = io.WriteString(w, text)
	case err != nil:
	case r.ContentLength < 0 || len(r.TransferEncoding) > 0: // S3 takes no chunks
		w.WriteHeader(http.StatusLengthRequired)
	case r.Header.Get("If-None-Match") != "*":
		w.WriteHeader(http.StatusForbidden) // it is signed
	default:
		b.objects[name] = string(body)
	}
}

func (b *bucket) sign(method, object string) string {
	return b.url + "/" + object + "?" + signature + "&for=" + method
}

// ask answers as the host does, to a runner of the generation b.gen.
func (b *bucket) ask(_ context.Context, f frame.Snapshot) (kept frame.Kept, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	newest, ok := b.newest[f.Owner]
	switch {
	case f.Op == frame.Get && !ok:
		return kept, storage.NotFound
	case f.Op == frame.Get:
		return frame.Kept{URL: b.sign(http.MethodGet, newest.Object), Sum: b.sums[newest.Object], Saved: time.Now().UnixMilli()}, nil
	case f.Op == frame.Put:
		b.rooms++
		object := fmt.Sprintf("%x/%d-%d", f.Owner, b.gen, b.rooms)
		b.sums[object] = f.Sum
		return frame.Kept{Object: object, URL: b.sign(http.MethodPut, object), Header: map[string]string{"if-none-match": "*"}}, nil
	case newest.Generation > b.gen:
		if f.Op == frame.Done {
			err = storage.Fenced
		}
		return kept, err
	case f.Op == frame.Done:
		b.newest[f.Owner] = pointer{b.gen, f.Object, ""}
	default:
		delete(b.newest, f.Owner)
	}
	return kept, nil
}

func (b *bucket) store(temp string) *Signed {
	return NewSigned(SignedConfig{Ask: b.ask, Temp: temp, Pauses: []time.Duration{time.Millisecond, time.Millisecond}})
}

// aged tells the bucket which generation writes, as the connection of a runner does.
type aged struct {
	*Signed
	b *bucket
}

func (a aged) Put(ctx context.Context, key string, gen int64, write func(io.Writer) error) error {
	a.b.gen = gen
	return a.Signed.Put(ctx, key, gen, write)
}

func (a aged) Delete(ctx context.Context, key string, gen int64) error {
	a.b.gen = gen
	return a.Signed.Delete(ctx, key, gen)
}

func TestSignedRefusesBytesThatWereNotPut(t *testing.T) {
	b := newBucket(t)
	s := b.store(t.TempDir())
	must(t, s.Put(t.Context(), "key", 1, text("one")))
	for object := range b.objects {
		b.objects[object] = "two"
	}
	r, _, err := s.Get(t.Context(), "key")
	must(t, err)
	defer func() { _ = r.Close() }()
	_, err = io.ReadAll(r)
	is(t, ErrCorrupt, err)
}

func TestSignedTriesAgain(t *testing.T) {
	b := newBucket(t)
	s := b.store(t.TempDir())
	b.trouble = []int{503, 500}
	must(t, s.Put(t.Context(), "key", 1, text("one")))
	b.trouble = []int{429, 503}
	commontest.Equal(t, "one", got(t, s, "key"))
	b.trouble = []int{503, 503, 503}
	if err := s.Put(t.Context(), "key", 1, text("two")); err == nil || !strings.Contains(err.Error(), "answers 503") {
		t.Errorf("got %v", err)
	}
	commontest.EqualIn(t, "after a put that failed", "one", got(t, s, "key"))
}

func TestSignedGivesUpWhatIsRefused(t *testing.T) {
	for _, code := range []int{301, 307, 400, 403, 412} {
		b := newBucket(t)
		s := b.store(t.TempDir())
		must(t, s.Put(t.Context(), "key", 1, text("one")))
		b.trouble = []int{code, 503} // the second is for who tries again
		if _, _, err := s.Get(t.Context(), "key"); err == nil || !strings.Contains(err.Error(), fmt.Sprint("answers ", code)) {
			t.Errorf("%d: %v", code, err)
		}
		b.trouble = []int{code, 503}
		if err := s.Put(t.Context(), "key", 1, text("two")); err == nil || len(b.trouble) != 1 {
			t.Errorf("%d: %v, %d left", code, err, len(b.trouble))
		}
	}
	b := newBucket(t)
	b.newest["key"] = pointer{1, "expired", ""}
	_, _, err := b.store(t.TempDir()).Get(t.Context(), "key")
	is(t, ErrNone, err)
}

func TestSnapshotThatIsReplacedWhileItIsGotIsAskedForAgain(t *testing.T) {
	b := newBucket(t)
	s := b.store(t.TempDir())
	must(t, s.Put(t.Context(), "key", 1, text("one")))
	b.before = func() { // runs after the URL was made and before the request for it
		b.mu.Lock()
		defer b.mu.Unlock()
		if p := b.newest["key"]; p.Object != "two" {
			delete(b.objects, p.Object)
			b.objects["two"], b.newest["key"] = "two", pointer{1, "two", ""}
		}
	}
	commontest.Equal(t, "two", got(t, s, "key"))
}

func TestSignatureIsInNoError(t *testing.T) {
	b := newBucket(t)
	s := b.store(t.TempDir())
	must(t, s.Put(t.Context(), "key", 1, text(strings.Repeat("x", 100_000))))
	var errs []error
	b.trouble = []int{403}
	_, _, err := s.Get(t.Context(), "key")
	errs = append(errs, err)
	b.cut = true
	r, _, err := s.Get(t.Context(), "key")
	must(t, err)
	_, err = io.ReadAll(r)
	errs = append(errs, err, r.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = s.Get(ctx, "key")
	errs = append(errs, err, s.Put(ctx, "key", 1, text("x")))
	b.url = "http://127.0.0.1:1"
	_, _, err = s.Get(t.Context(), "key")
	errs = append(errs, err)
	b.url = "http://bad host"
	errs = append(errs, s.Put(t.Context(), "key", 1, text("x")))
	n := 0
	for _, err := range errs {
		if err != nil {
			n++
			if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "X-Amz") {
				t.Errorf("it is told: %v", err)
			}
		}
	}
	commontest.Equal(t, 6, n)
}
