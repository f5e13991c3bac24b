// Package buckettest is an S3 for tests: objects in memory behind HTTP, with the
// features that package bucket relies on. It checks Signature Version 4 of headers and
// URLs itself, so it refuses a request that was changed after it was signed.
//
// It has no lists, versions or multipart uploads.
package buckettest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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
)

// The credentials and the region with which requests must be signed.
const (
	KeyID  = "AKIDEXAMPLE"
	Secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY" //nolint:gosec // of AWS's own examples
	Token  = "a session's token"
	Region = "eu-test-1"
)

// S3 is one endpoint.
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

// Endpoint returns the URL of the S3.
func (s *S3) Endpoint() string { return s.server.URL }

// Before calls f with each request first. If f returns a status other than 0, the answer has
// this status, and the request has no effect. f runs without a lock.
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

// Check checks the signature of a request with this body. It returns nil if header or
// URL are signed with KeyID, Secret and Token, for S3 in Region, and if the signature is
// valid at the time at.
func Check(r *http.Request, body []byte, at time.Time) error {
	query := r.URL.Query()
	if !query.Has("X-Amz-Signature") {
		sum := sha256.Sum256(body)
		digest := hex.EncodeToString(sum[:])
		if got := r.Header.Get("X-Amz-Content-Sha256"); got != digest {
			return fmt.Errorf("the body is another one: %q", got)
		}
		fields := map[string]string{}
		for _, f := range strings.Split(strings.TrimPrefix(r.Header.Get("Authorization"), algorithm+" "), ", ") {
			name, value, _ := strings.Cut(f, "=")
			fields[name] = value
		}
		return signed{
			r, r.Header.Get("X-Amz-Date"), fields["Credential"], fields["SignedHeaders"], fields["Signature"],
			digest, r.Header.Get("X-Amz-Security-Token"), 5 * time.Minute,
		}.check(query, at)
	}
	signature := query.Get("X-Amz-Signature")
	query.Del("X-Amz-Signature")
	seconds, err := strconv.Atoi(query.Get("X-Amz-Expires"))
	if err != nil || seconds > 7*24*3600 || query.Get("X-Amz-Algorithm") != algorithm {
		return fmt.Errorf("the URL is not one that was signed")
	}
	return signed{
		r, query.Get("X-Amz-Date"), query.Get("X-Amz-Credential"), query.Get("X-Amz-SignedHeaders"), signature,
		"UNSIGNED-PAYLOAD", query.Get("X-Amz-Security-Token"), time.Duration(seconds) * time.Second,
	}.check(query, at)
}

const algorithm = "AWS4-HMAC-SHA256"

// signed is a request with the parts of its signature.
type signed struct {
	r                                    *http.Request
	date, credential, headers, signature string
	digest, token                        string
	life                                 time.Duration
}

func (s signed) check(query url.Values, at time.Time) error {
	begun, err := time.Parse("20060102T150405Z", s.date)
	if err != nil || at.Before(begun.Add(-time.Minute)) || at.After(begun.Add(s.life)) {
		return fmt.Errorf("signed at %q for %s: it is too late", s.date, s.life)
	}
	scope := s.date[:8] + "/" + Region + "/s3/aws4_request"
	if s.credential != KeyID+"/"+scope || s.token != Token {
		return fmt.Errorf("credential %q is another", s.credential)
	}
	names := strings.Split(s.headers, ";")
	if s.r.Method == http.MethodPut && !slices.Contains(names, "content-length") || !slices.Contains(names, "host") {
		return fmt.Errorf("host and length are not signed: %q", s.headers)
	}
	for name := range s.r.Header {
		name = strings.ToLower(name)
		if (strings.HasPrefix(name, "if-") || strings.HasPrefix(name, "x-amz-")) && !slices.Contains(names, name) {
			return fmt.Errorf("%s is not signed", name)
		}
	}
	want := hex.EncodeToString(sign(Secret, s.date[:8], Region, "s3", toSign(s.date, scope, canonical(s.r, query, names, s.digest))))
	if !hmac.Equal([]byte(want), []byte(s.signature)) {
		return fmt.Errorf("the signature is for another request")
	}
	return nil
}

// canonical returns the canonical request of Signature Version 4.
func canonical(r *http.Request, query url.Values, names []string, digest string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%s\n", r.Method, r.URL.EscapedPath(), strings.ReplaceAll(query.Encode(), "+", "%20"))
	for _, name := range names {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		fmt.Fprintf(&b, "%s:%s\n", name, strings.TrimSpace(value))
	}
	fmt.Fprintf(&b, "\n%s\n%s", strings.Join(names, ";"), digest)
	return b.String()
}

func toSign(date, scope, request string) string {
	sum := sha256.Sum256([]byte(request))
	return algorithm + "\n" + date + "\n" + scope + "\n" + hex.EncodeToString(sum[:])
}

func sign(secret, day, region, service, text string) []byte {
	key := []byte("AWS4" + secret)
	for _, part := range []string{day, region, service, "aws4_request", text} {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	return key
}
