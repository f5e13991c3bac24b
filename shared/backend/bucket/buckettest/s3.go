// Package buckettest is an S3 for tests: objects in memory behind HTTP, with the
// features that package bucket relies on. It checks the signatures of headers and URLs, so
// it refuses a request that was changed after it was signed.
//
// It has no lists, versions or multipart uploads.
package buckettest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// The credentials and the region with which requests must be signed.
const (
	KeyID  = "AKIDEXAMPLE"
	Secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY" //nolint:gosec // of AWS's own examples
	Token  = "a session's token"
	Region = "eu-test-1"
)

// S3 is an HTTP server that answers as S3 does.
type S3 struct {
	server *httptest.Server

	mu      sync.Mutex
	objects map[string]object
	writes  int
	before  func(*http.Request) int
	log     []string
}

type object struct {
	data []byte
	etag string
}

// New starts an S3 that ends with the test.
func New(t testing.TB) *S3 {
	s := &S3{objects: map[string]object{}}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	return s
}

// Endpoint returns the URL of the server, without a slash at its end.
func (s *S3) Endpoint() string { return s.server.URL }

// Before sets a function that is called with each request before the server handles it. If f
// returns a status other than 0, the answer has this status, and the request has no effect. f runs
// without a lock.
func (s *S3) Before(f func(*http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// Objects returns the names of all objects, "BUCKET/KEY", in order.
func (s *S3) Objects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Requests returns the methods and paths of all requests so far, with the status of the
// answer and the reason of a refusal.
func (s *S3) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// ServeHTTP implements http.Handler.
func (s *S3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	code, why := 0, ""
	if before != nil {
		code = before(r)
	}
	switch {
	case err != nil:
		code = http.StatusBadRequest
	case code == 0:
		if err := Check(r, body, time.Now()); err != nil {
			code, why = http.StatusForbidden, ": "+err.Error()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if code != 0 {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "<Error><Code>Refused</Code><Resource>"+r.URL.String()+"</Resource></Error>")
	} else {
		code = s.serve(w, r, body)
	}
	s.log = append(s.log, fmt.Sprintf("%s %s %d%s", r.Method, r.URL.Path, code, why))
}

// serve handles a request with a valid signature.
func (s *S3) serve(w http.ResponseWriter, r *http.Request, body []byte) int {
	key := strings.TrimPrefix(r.URL.Path, "/")
	old, there := s.objects[key]
	code := http.StatusOK
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	switch {
	case r.Method == http.MethodGet && !there:
		code = http.StatusNotFound
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		code = http.StatusNoContent
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", old.etag)
		w.Header().Set("Content-Length", strconv.Itoa(len(old.data)))
		_, _ = w.Write(old.data)
		return code
	case r.Method != http.MethodPut:
		code = http.StatusMethodNotAllowed
	case len(r.TransferEncoding) > 0:
		code = http.StatusLengthRequired
	case match != "" && !there:
		code = http.StatusNotFound
	case none == "*" && there || match != "" && match != old.etag:
		code = http.StatusPreconditionFailed
	default:
		s.writes++
		o := object{body, fmt.Sprintf("%q", strconv.Itoa(s.writes))}
		s.objects[key] = o
		w.Header().Set("ETag", o.etag)
	}
	w.WriteHeader(code)
	return code
}

// Check checks the signature of a request with this body: it signs the request anew with the signer
// of AWS, and compares. It returns nil if header or URL are signed with KeyID, Secret and Token,
// for S3 in Region. The argument at is the time at which the signature must be valid.
func Check(r *http.Request, body []byte, at time.Time) error {
	query, signer := r.URL.Query(), v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	credentials := aws.Credentials{AccessKeyID: KeyID, SecretAccessKey: Secret, SessionToken: Token}
	again := &http.Request{Method: r.Method, URL: &url.URL{Scheme: "http", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}, Header: http.Header{}, ContentLength: r.ContentLength}
	for name, values := range r.Header {
		if strings.HasPrefix(name, "If-") || strings.HasPrefix(name, "X-Amz-") {
			again.Header[name] = values
		}
	}
	if !query.Has("X-Amz-Signature") {
		begun, err := signedAt(r.Header.Get("X-Amz-Date"), 5*time.Minute, at)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		digest := hex.EncodeToString(sum[:])
		again.Header.Set("X-Amz-Content-Sha256", digest)
		err = signer.SignHTTP(r.Context(), credentials, again, digest, "s3", Region, begun)
		if err == nil && again.Header.Get("Authorization") != r.Header.Get("Authorization") {
			err = errors.New("the signature is for another request")
		}
		return err
	}
	seconds, err := strconv.Atoi(query.Get("X-Amz-Expires"))
	if err != nil || seconds > 7*24*3600 {
		return errors.New("the URL is not one that was signed")
	}
	begun, err := signedAt(query.Get("X-Amz-Date"), time.Duration(seconds)*time.Second, at)
	if err != nil {
		return err
	}
	again.URL.RawQuery = url.Values{"X-Amz-Expires": query["X-Amz-Expires"]}.Encode()
	signed, _, err := signer.PresignHTTP(r.Context(), credentials, again, "UNSIGNED-PAYLOAD", "s3", Region, begun)
	if err != nil {
		return err
	}
	want, err := url.Parse(signed)
	if err == nil && want.Query().Encode() != query.Encode() {
		err = errors.New("the signature is for another request")
	}
	return err
}

// signedAt reads the date of a signature that is valid for the time validFor. It fails if the
// signature is not valid now.
func signedAt(date string, validFor time.Duration, now time.Time) (time.Time, error) {
	begun, err := time.Parse("20060102T150405Z", date)
	if err != nil || now.Before(begun.Add(-time.Minute)) || now.After(begun.Add(validFor)) {
		return begun, fmt.Errorf("signed at %q for %s: it is too late", date, validFor)
	}
	return begun, nil
}
