package bucket

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// service is S3's name in a signature.
const service = "s3"

// url returns the URL of an object. The bucket is in the host on AWS, and in the path at
// a configured endpoint.
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

// asWritten makes the signer use a path unchanged: S3 expects a path that is escaped only
// once.
func asWritten(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }

// sign signs a request of the host itself.
func (b *Bucket) sign(ctx context.Context, r *http.Request, body []byte) error {
	credentials, err := b.cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	r.Header.Set("X-Amz-Content-Sha256", digest)
	return v4.NewSigner().SignHTTP(ctx, credentials, r, digest, service, b.cfg.Location.Region, time.Now(), asWritten)
}

// presign returns a URL for one object and method. A URL for PUT accepts exactly size
// bytes, and only while the object does not exist.
func (b *Bucket) presign(ctx context.Context, method, object string, size int64) (url string, header map[string]string, err error) {
	failed := func(err error) (string, map[string]string, error) {
		return "", nil, session.Errorf(session.Unavailable, "no URL for a snapshot can be signed").Because(err)
	}
	credentials, err := b.cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return failed(err)
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
	url, _, err = v4.NewSigner().PresignHTTP(ctx, credentials, r, "UNSIGNED-PAYLOAD", service, b.cfg.Location.Region, time.Now(), asWritten)
	if err != nil {
		return failed(err)
	}
	return url, header, nil
}
