// Package bucket keeps snapshots of workspaces, which are folders of servers, in S3 or a compatible
// service. Only the host, which runs in Lambda functions, has credentials of the bucket. A box,
// which runs a server, gets a URL from the host for each upload and download. A URL is valid for
// some minutes and for one object.
//
// The package does not check the caller: its callers must ensure that a box asks only for its
// own snapshots (package relayserver does).
//
// # Objects
//
//	PREFIX/TENANT/SERVER/OWNER/GENERATION-TIME-SUM.tar.zst   a snapshot
//	PREFIX/TENANT/SERVER/OWNER/current                       the name of the newest
//
// TENANT and SERVER are the box's, as digests if they have characters that would have to be
// escaped. OWNER is a digest. SUM is the SHA-256 of the object's bytes, which the box sends before
// it uploads them. If the box sent no sum, SUM is a random number. A snapshot is valid once the
// object "current" names it. That object is written only if it is unchanged since it was read, and
// only moves to a greater name. Names of one owner grow with the generation of the box and with
// time. An unconfirmed upload therefore has no effect, a repeated or late confirmation changes
// nothing, and a confirmation of a replaced runner is refused.
//
// The bucket's lifecycle rules remove unconfirmed and unused objects by age.
package bucket

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// MaxSnapshot is the largest size of a snapshot, in bytes. A runner packs at most 256 MiB of files
// by default.
const MaxSnapshot = 288 << 20

const (
	callTimeout = 5 * time.Second // limit for one request
	urlLife     = 10 * time.Minute
	maxPointer  = 4 << 10 // bytes
	maxTries    = 5       // tries to write a pointer that another runner writes too
	current     = "current"
	ending      = ".tar.zst"
)

// Config says where the bucket is and with which credentials. Location and Credentials are
// required.
type Config struct {
	Location    Location
	Credentials aws.CredentialsProvider
	Domain      string // AWS's domain, if it is not amazonaws.com
	MaxBytes    int64  // of a snapshot; 0 for MaxSnapshot
	Client      *http.Client
}

// Bucket signs URLs of snapshots, and records which snapshot of each owner is the newest. It is
// safe for concurrent use.
type Bucket struct {
	cfg Config
	s3  awscall.Service
}

// New returns a Bucket. It makes no request.
func New(c Config) *Bucket {
	c.MaxBytes = cmp.Or(c.MaxBytes, MaxSnapshot)
	c.Domain = cmp.Or(c.Domain, "amazonaws.com")
	if c.Client == nil {
		c.Client = &http.Client{
			// A transport of its own shares no idle connections with other clients.
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Bucket{c, awscall.Service{Name: awscall.S3, Region: c.Location.Region, Credentials: c.Credentials, Client: c.Client}}
}

// pointer is the contents of the object with the name "current".
type pointer struct {
	Generation storage.Generation `json:"generation"`
	Object     string             `json:"object"`
	Saved      time.Time          `json:"saved"`

	etag string // the object's ETag when it was read; "" if it did not exist
}

// Newest returns a URL, valid for some minutes, to get the newest snapshot of an owner. It also
// returns the sum of the snapshot, and when it was saved. Errors: NotFound if there is none,
// Unavailable.
func (b *Bucket) Newest(ctx context.Context, box storage.BoxID, owner string) (get, sum string, saved time.Time, err error) {
	p, err := b.pointer(ctx, box, owner)
	if err != nil {
		return "", "", time.Time{}, err
	}
	if p.Object == "" {
		return "", "", time.Time{}, storage.Errorf(storage.NotFound, "there is no snapshot")
	}
	get, _, err = b.presign(ctx, http.MethodGet, folder(box, owner)+p.Object, 0)
	return get, sumOf(p.Object), p.Saved, err
}

// Room returns what the upload of a new snapshot of size bytes needs: the name of its object, a URL
// for PUT, and the headers to send. The URL is valid for some minutes and accepts exactly size
// bytes. sum is the SHA-256 of the snapshot in hexadecimal, or "" if the box does not know it.
// Errors: Fenced if a newer generation has saved, TooLarge, Invalid, Unavailable.
func (b *Bucket) Room(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation, size int64, sum string) (object, put string, header map[string]string, err error) {
	switch {
	case size > b.cfg.MaxBytes:
		return "", "", nil, storage.Errorf(storage.TooLarge, "the snapshot has %d bytes; at most %d are kept", size, b.cfg.MaxBytes)
	case size < 1:
		return "", "", nil, storage.Errorf(storage.Invalid, "a snapshot cannot have %d bytes", size)
	case sum != "" && !isSum(sum):
		return "", "", nil, storage.Errorf(storage.Invalid, "%q is no SHA-256 in hexadecimal", clip(sum))
	}
	p, err := b.pointer(ctx, box, owner)
	if err != nil {
		return "", "", nil, err
	}
	if p.Generation > gen {
		return "", "", nil, stale(gen, p)
	}
	at := time.Now().UnixMilli()
	if _, before, ok := parts(p.Object); ok && p.Generation == gen {
		at = max(at, before+1) // the clock of another instance may be ahead
	}
	object = fmt.Sprintf("%016d-%013d-%s%s", gen, at, cmp.Or(sum, storage.NewNonce()), ending)
	put, header, err = b.presign(ctx, http.MethodPut, folder(box, owner)+object, size)
	return object, put, header, err
}

// Commit makes an uploaded object the newest snapshot of an owner, and removes the previous one.
// Commit may be repeated, and does nothing for an object that is older than the newest. Errors:
// Fenced if a newer generation has saved, Invalid for a name that [Bucket.Room] did not return,
// Unavailable.
func (b *Bucket) Commit(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation, object string) error {
	of, _, ok := parts(object)
	if !ok || of > gen {
		return storage.Errorf(storage.Invalid, "%q is no object of generation %d", clip(object), gen)
	}
	for range maxTries {
		p, err := b.pointer(ctx, box, owner)
		switch {
		case err != nil:
			return err
		case p.Generation > of:
			return stale(of, p)
		case p.Object >= object:
			return nil // the pointer has this very object, or a newer one
		}
		text, err := json.Marshal(pointer{Generation: of, Object: object, Saved: time.Now().UTC()})
		if err != nil {
			return err
		}
		when := http.Header{"If-None-Match": {"*"}}
		if p.etag != "" {
			when = http.Header{"If-Match": {p.etag}}
		}
		answer, err := b.call(ctx, http.MethodPut, folder(box, owner)+current, when, text)
		if err != nil {
			return err
		}
		switch answer.Status {
		case http.StatusOK:
			if p.Object != "" {
				// If this request fails, the lifecycle rules remove the object.
				_, _ = b.call(ctx, http.MethodDelete, folder(box, owner)+p.Object, nil, nil)
			}
			return nil
		case http.StatusPreconditionFailed, http.StatusConflict, http.StatusNotFound:
			continue // another runner has written or removed the pointer
		}
		return unexpected("write which snapshot is the newest", answer)
	}
	return storage.Errorf(storage.Unavailable, "several runners are saving the same snapshot; try again")
}

// Forget removes an owner's snapshot of gen or an older generation, if there is one.
// Errors: Unavailable.
func (b *Bucket) Forget(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation) error {
	p, err := b.pointer(ctx, box, owner)
	if err != nil || p.Object == "" || p.Generation > gen {
		return err
	}
	for _, name := range []string{current, p.Object} { // remove the pointer first: without it there is no snapshot
		answer, err := b.call(ctx, http.MethodDelete, folder(box, owner)+name, nil, nil)
		if err != nil {
			return err
		}
		if answer.Status != http.StatusNoContent && answer.Status != http.StatusOK && answer.Status != http.StatusNotFound {
			return unexpected("remove a snapshot", answer)
		}
	}
	return nil
}

func stale(gen storage.Generation, p pointer) error {
	return storage.Errorf(storage.Fenced, "generation %d saves, and there is a snapshot of %d", gen, p.Generation)
}

// pointer reads the pointer to the newest snapshot; it is zero if there is none.
func (b *Bucket) pointer(ctx context.Context, box storage.BoxID, owner string) (pointer, error) {
	answer, err := b.call(ctx, http.MethodGet, folder(box, owner)+current, nil, nil)
	switch {
	case err != nil:
		return pointer{}, err
	case answer.Status == http.StatusNotFound:
		return pointer{}, nil
	case answer.Status != http.StatusOK:
		return pointer{}, unexpected("read which snapshot is the newest", answer)
	}
	p := pointer{etag: answer.Header.Get("ETag")}
	if err := json.Unmarshal(answer.Body, &p); err != nil {
		return pointer{}, storage.Errorf(storage.Unavailable, "cannot read the name of the newest snapshot").Because(err)
	}
	gen, _, ok := parts(p.Object)
	if !ok || gen != p.Generation || p.etag == "" {
		return pointer{}, storage.Errorf(storage.Unavailable, "the name of the newest snapshot is not valid: %q", clip(p.Object))
	}
	return p, nil
}

// unexpected returns the error for an answer of S3 with another status than expected. The
// error has only the error code of the answer: the rest may repeat the request.
func unexpected(what string, a awscall.Answer) error {
	why := ""
	if m := regexp.MustCompile(`<Code>([A-Za-z]{1,60})</Code>`).FindSubmatch(a.Body); m != nil {
		why = " (" + string(m[1]) + ")"
	}
	return storage.Errorf(storage.Unavailable, "the snapshots cannot be reached").Because(fmt.Errorf("%s: S3 answers %d%s", what, a.Status, why))
}

// call makes one signed request for an object.
func (b *Bucket) call(ctx context.Context, method, object string, header http.Header, body []byte) (awscall.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	a, err := b.s3.Do(ctx, awscall.Request{Method: method, URL: b.url(object), Header: header, Body: body}, maxPointer)
	if err != nil {
		return a, storage.Errorf(storage.Unavailable, "the snapshots cannot be reached").Because(err)
	}
	return a, nil
}

// folder returns the folder of an owner's objects, below the prefix.
func folder(box storage.BoxID, owner string) string {
	tenant, server := box.Parts()
	sum := sha256.Sum256([]byte(string(box) + "\x00" + owner))
	return plain(tenant) + "/" + plain(server) + "/" + hex.EncodeToString(sum[:]) + "/"
}

// plain returns name if it needs no escaping in a URL. For any other name it returns a dot
// and a digest of name.
func plain(name string) string {
	ok := name != "" && len(name) <= 100
	for _, c := range []byte(name) {
		ok = ok && (c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_')
	}
	if ok {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "." + hex.EncodeToString(sum[:]) // no plain name has a dot
}

// parts returns the generation and the time in the name of a snapshot.
func parts(object string) (gen storage.Generation, at int64, ok bool) {
	fields := strings.SplitN(strings.TrimSuffix(object, ending), "-", 3)
	if !strings.HasSuffix(object, ending) || len(fields) != 3 || len(fields[0]) != 16 || len(fields[1]) != 13 || plain(fields[2]) != fields[2] {
		return 0, 0, false
	}
	g, err1 := strconv.ParseUint(fields[0], 10, 63)
	t, err2 := strconv.ParseUint(fields[1], 10, 63)
	return storage.Generation(g), int64(t), errors.Join(err1, err2) == nil //nolint:gosec // g and t have at most 63 bits
}

// sumOf returns the sum in the name of a snapshot, "" if it has none.
func sumOf(object string) string {
	sum := strings.TrimSuffix(object[strings.LastIndexByte(object, '-')+1:], ending)
	if !isSum(sum) {
		return ""
	}
	return sum
}

// isSum reports whether s is a SHA-256 in hexadecimal.
func isSum(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

func clip(s string) string { return s[:min(len(s), 100)] }
