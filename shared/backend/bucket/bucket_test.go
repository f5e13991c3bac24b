package bucket_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket/buckettest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	box   = storage.BoxID("acme/files")
	owner = "s1"
)

func open(s3 *buckettest.S3) *bucket.Bucket {
	return bucket.New(bucket.Config{
		Location: bucket.Location{Bucket: "kept", Prefix: "snapshots", Region: buckettest.Region, Endpoint: s3.Endpoint()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: buckettest.KeyID, SecretAccessKey: buckettest.Secret, SessionToken: buckettest.Token}, nil
		}),
		MaxBytes: 1000,
	})
}

// send uses a URL as a box does.
func send(t *testing.T, method, url string, header map[string]string, body string) (code int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	commontest.OK(t, err)
	for name, value := range header {
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	commontest.OK(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	commontest.OK(t, err)
	return res.StatusCode, string(text)
}

// sum returns the sum that a box sends for its snapshot.
func sum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// put uploads a snapshot, and does not commit it.
func put(t *testing.T, b *bucket.Bucket, gen storage.Generation, text string) (object string) {
	t.Helper()
	object, url, header, err := b.Room(t.Context(), box, owner, gen, int64(len(text)), sum(text))
	commontest.OK(t, err)
	if code, answer := send(t, http.MethodPut, url, header, text); code != http.StatusOK {
		t.Fatalf("put is answered %d %s", code, answer)
	}
	return object
}

func save(t *testing.T, b *bucket.Bucket, gen storage.Generation, text string) (object string) {
	t.Helper()
	object = put(t, b, gen, text)
	commontest.OK(t, b.Commit(t.Context(), box, owner, gen, object))
	return object
}

// kept returns the newest snapshot, "none" for none.
func kept(t *testing.T, b *bucket.Bucket) string {
	t.Helper()
	url, told, saved, err := b.Newest(t.Context(), box, owner)
	if errors.Is(err, storage.NotFound) {
		return "none"
	}
	if err != nil || saved.IsZero() {
		t.Fatalf("saved %s, %v", saved, err)
	}
	code, text := send(t, http.MethodGet, url, nil, "")
	if code != http.StatusOK {
		t.Fatalf("get is answered %d", code)
	}
	commontest.EqualIn(t, "the sum that is told", sum(text), told)
	return text
}

func TestSnapshotThatWasCommittedIsTheNewest(t *testing.T) {
	t.Parallel()
	s3 := buckettest.New(t)
	b := open(s3)
	commontest.Equal(t, "none", kept(t, b))
	first := save(t, b, 1, "one")
	lost := put(t, b, 1, "the runner died behind it")
	commontest.Equal(t, "one", kept(t, b))
	second := save(t, b, 1, "two")
	for _, object := range []string{second, first, first} {
		commontest.CheckIn(t, "a commit that comes twice, or late", b.Commit(t.Context(), box, owner, 1, object))
	}
	commontest.Equal(t, "two", kept(t, b))
	last := save(t, b, 4, "three")
	commontest.Equal(t, "three", kept(t, b))
	var names []string
	for _, name := range s3.Objects() {
		names = append(names, name[strings.LastIndexByte(name, '/')+1:])
		if !strings.HasPrefix(name, "kept/snapshots/acme/files/") {
			t.Errorf("an object is at %s", name)
		}
	}
	commontest.SameIn(t, "left", []string{lost, last, "current"}, names)
}

func TestOlderGenerationIsRefusedAfterANewerOneHasSaved(t *testing.T) {
	t.Parallel()
	b := open(buckettest.New(t))
	old := put(t, b, 1, "old")
	save(t, b, 2, "new")
	if err := b.Commit(t.Context(), box, owner, 1, old); !errors.Is(err, storage.Fenced) {
		t.Errorf("commit: %v", err)
	}
	if _, _, _, err := b.Room(t.Context(), box, owner, 1, 10, ""); !errors.Is(err, storage.Fenced) {
		t.Errorf("room: %v", err)
	}
	commontest.Check(t, b.Forget(t.Context(), box, owner, 1))
	commontest.Equal(t, "new", kept(t, b))
}

func TestNameThatWasNeverGivenIsRefused(t *testing.T) {
	t.Parallel()
	s3 := buckettest.New(t)
	b := open(s3)
	good := put(t, b, 3, "x")
	for _, object := range []string{
		"", "current", "../" + good, "a/" + good, good + "/..", strings.TrimSuffix(good, ".tar.zst"), "0000000000000003-x-n.tar.zst",
		strings.Replace(good, "0000000000000003", "0000000000000009", 1), strings.Replace(good, ".tar", "?x.tar", 1),
	} {
		if err := b.Commit(t.Context(), box, owner, 3, object); !errors.Is(err, storage.Invalid) {
			t.Errorf("%q: %v", object, err)
		}
	}
	if object, _, _, err := b.Room(t.Context(), box, owner, 3, 10, "../"+sum("")[3:]); !errors.Is(err, storage.Invalid) {
		t.Errorf("a sum that is a path: %q, %v", object, err)
	}
}

func TestURLIsGoodForNothingElse(t *testing.T) {
	t.Parallel()
	s3 := buckettest.New(t)
	b := open(s3)
	save(t, b, 1, "one")
	get, _, _, err := b.Newest(t.Context(), box, owner)
	commontest.OK(t, err)
	object, room, header, err := b.Room(t.Context(), box, owner, 1, 3, "")
	commontest.OK(t, err)
	other := strings.Replace(room, object, "current", 1)
	mine, _, _ := strings.Cut(room, "?")
	_, signature, _ := strings.Cut(get, "?")
	for what, try := range map[string]struct {
		method, url string
		header      map[string]string
		body        string
	}{
		"more bytes":              {http.MethodPut, room, header, "four"},
		"fewer bytes":             {http.MethodPut, room, header, "2b"},
		"without its header":      {http.MethodPut, room, nil, "abc"},
		"the pointer":             {http.MethodPut, other, header, "abc"},
		"a get as a put":          {http.MethodPut, get, header, "abc"},
		"a get of another":        {http.MethodGet, mine + "?" + signature, nil, ""},
		"a put as a delete":       {http.MethodDelete, room, nil, ""},
		"a get for a longer time": {http.MethodGet, strings.Replace(get, "X-Amz-Expires=600", "X-Amz-Expires=601", 1), nil, ""},
	} {
		code, _ := send(t, try.method, try.url, try.header, try.body)
		commontest.EqualIn(t, what, http.StatusForbidden, code)
	}
	if code, _ := send(t, http.MethodPut, room, header, "abc"); code != http.StatusOK {
		t.Errorf("as it was signed: %d", code)
	}
	if code, _ := send(t, http.MethodPut, room, header, "xyz"); code != http.StatusPreconditionFailed {
		t.Errorf("once more: %d", code)
	}
}

func TestPointerThatIsWrittenAtTheSameTimeMovesOn(t *testing.T) {
	t.Parallel()
	b := open(buckettest.New(t))
	texts := map[string]string{} // within a millisecond the name does not tell the order
	for _, text := range []string{"a", "b", "c"} {
		texts[put(t, b, 1, text)] = text
	}
	var all sync.WaitGroup
	for object := range texts {
		all.Go(func() {
			commontest.Check(t, b.Commit(t.Context(), box, owner, 1, object))
		})
	}
	all.Wait()
	if got, want := kept(t, b), texts[slices.Max(slices.Collect(maps.Keys(texts)))]; got != want {
		t.Errorf("the newest is %q, not %q with the greatest name", got, want)
	}
}

// A newer generation commits between the read and the write of an older one.
func TestOlderPointerReplacesNoNewerOne(t *testing.T) {
	t.Parallel()
	s3 := buckettest.New(t)
	b := open(s3)
	save(t, b, 1, "first")
	older, newer := put(t, b, 1, "older"), put(t, b, 2, "newer")
	var begun atomic.Bool
	s3.Before(func(r *http.Request) int {
		if r.Method == http.MethodPut && !begun.Swap(true) {
			commontest.Check(t, b.Commit(t.Context(), box, owner, 2, newer))
		}
		return 0
	})
	commontest.EqualIn(t, "the older commit is", storage.Fenced, storage.CodeOf(b.Commit(t.Context(), box, owner, 1, older)))
	commontest.Equal(t, "newer", kept(t, b))
}

func TestTroubleOfS3IsNotNoSnapshot(t *testing.T) {
	t.Parallel()
	for _, code := range []int{301, 403, 500, 503} {
		s3 := buckettest.New(t)
		b := open(s3)
		object := save(t, b, 1, "one")
		s3.Before(func(*http.Request) int { return code })
		_, _, _, newest := b.Newest(t.Context(), box, owner)
		_, _, _, room := b.Room(t.Context(), box, owner, 1, 1, "")
		for what, err := range map[string]error{
			"newest": newest, "room": room,
			"commit": b.Commit(t.Context(), box, owner, 1, object), "forget": b.Forget(t.Context(), box, owner, 1),
		} {
			if !errors.Is(err, storage.Unavailable) || strings.Contains(err.Error(), "kept/") {
				t.Errorf("%d, %s: %v", code, what, err)
			}
		}
	}
}

func TestPlaceIsRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bucket.Location{
		"kept": {Bucket: "kept", Region: "eu-1"},
		"kept/a/b/?region=us-2&endpoint=http://127.0.0.1:9/": {Bucket: "kept", Prefix: "a/b", Region: "us-2", Endpoint: "http://127.0.0.1:9"},
	} {
		got, err := bucket.ParseLocation(text, "eu-1")
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "ke.pt", "kept/../x", "kept//a", "kept?x=1", "kept?endpoint=ftp://x"} {
		if got, err := bucket.ParseLocation(text, "eu-1"); !errors.Is(err, storage.Invalid) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// asked is an S3 that only records the URL of a request.
type asked struct{ url string }

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	a.url = r.URL.String()
	return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r}, nil
}

func TestBucketOfAWSIsInTheHost(t *testing.T) {
	t.Parallel()
	to := &asked{}
	b := bucket.New(bucket.Config{
		Location: bucket.Location{Bucket: "kept", Prefix: "snapshots", Region: "cn-north-1"}, Domain: "amazonaws.com.cn", Client: &http.Client{Transport: to},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil
		}),
	})
	_, room, _, err := b.Room(t.Context(), "acme@x/files", owner, 1, 1, "")
	commontest.OK(t, err)
	for _, url := range []string{to.url, room} {
		if !strings.HasPrefix(url, "https://kept.s3.cn-north-1.amazonaws.com.cn/snapshots/.") {
			t.Errorf("it is at %s", url)
		}
	}
}
