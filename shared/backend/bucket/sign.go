package bucket

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// url returns the URL of an object. On AWS the host name begins with the bucket's name. At a
// configured endpoint the path begins with it.
func (b *Bucket) url(object string) string {
	p := b.cfg.Location
	if p.Prefix != "" {
		object = p.Prefix + "/" + object
	}
	if p.Endpoint != "" {
		return p.Endpoint + "/" + p.Bucket + "/" + object
	}
	return fmt.Sprintf("https://%s.s3.%s.%s/%s", p.Bucket, p.Region, b.cfg.Domain, object)
}

// URL returns a URL, valid for some minutes, to get an object below the prefix. Errors:
// Unavailable.
func (b *Bucket) URL(ctx context.Context, object string) (url string, err error) {
	url, _, err = b.presign(ctx, http.MethodGet, object, 0)
	return url, err
}

// presign returns a URL for one object and method. A URL for PUT accepts exactly size
// bytes, and only while the object does not exist.
func (b *Bucket) presign(ctx context.Context, method, object string, size int64) (url string, header map[string]string, err error) {
	failed := func(err error) (string, map[string]string, error) {
		return "", nil, storage.Errorf(storage.Unavailable, "no URL of the bucket can be signed").Because(err)
	}
	life := "?X-Amz-Expires=" + strconv.Itoa(int(urlLife/time.Second))
	r, err := http.NewRequestWithContext(ctx, method, b.url(object)+life, http.NoBody)
	if err != nil {
		return failed(err)
	}
	if method == http.MethodPut {
		r.ContentLength = size // makes the signature cover Content-Length
		r.Header.Set("If-None-Match", "*")
		header = map[string]string{"If-None-Match": "*"}
	}
	if url, err = b.s3.Presign(ctx, r); err != nil {
		return failed(err)
	}
	return url, header, nil
}
