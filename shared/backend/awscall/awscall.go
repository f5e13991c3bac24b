// Package awscall sends signed requests to services of AWS. It replaces AWS's own clients, each of
// which would make a Lambda function a twentieth larger. The package never retries, and no HTTP
// status is an error.
package awscall

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// S3 is the name of S3 in signatures.
const S3 = "s3"

// Service is a service of AWS in one region.
type Service struct {
	Name        string // as it is in signatures, for example [S3]
	Region      string
	Endpoint    string                  // the address of its API, without a slash at its end
	Credentials aws.CredentialsProvider // nil: requests are not signed
	Client      *http.Client            // nil for a client without a timeout
}

// Request is a request that a [Service] signs and sends.
type Request struct {
	Method string
	URL    string
	Header http.Header
	Body   []byte
}

// Answer is what a service has answered to a [Request].
type Answer struct {
	Status int // the HTTP status; 0 if no response came
	Header http.Header
	Body   []byte
}

// Do signs a request and sends it once. It reads at most limit bytes of the response's body. If
// the response breaks off, Do returns its status with the error.
func (s Service) Do(ctx context.Context, q Request, limit int64) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, q.Method, q.URL, bytes.NewReader(q.Body))
	if err != nil {
		return Answer{}, err
	}
	for name, values := range q.Header {
		r.Header[name] = values
	}
	if s.Credentials != nil {
		if err := s.sign(ctx, r, q.Body); err != nil {
			return Answer{}, err
		}
	}
	client := s.Client
	if client == nil {
		client = &http.Client{}
	}
	res, err := client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = res.Body.Close() }() // an error does not matter: the body was only read
	body, err := io.ReadAll(io.LimitReader(res.Body, limit))
	return Answer{res.StatusCode, res.Header, body}, err
}

// JSON sends a request to a service that speaks awsjson 1.1, as [Service.Do] does. The argument
// target names the operation, and body is JSON.
func (s Service) JSON(ctx context.Context, target string, body []byte, limit int64) (Answer, error) {
	return s.Do(ctx, Request{
		Method: http.MethodPost, URL: s.Endpoint + "/", Body: body,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.1"}, "X-Amz-Target": {target}},
	}, limit)
}

func (s Service) sign(ctx context.Context, r *http.Request, body []byte) error {
	credentials, err := s.Credentials.Retrieve(ctx)
	if err != nil {
		return fmt.Errorf("credentials for AWS: %w", err)
	}
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	if s.Name == S3 {
		r.Header.Set("X-Amz-Content-Sha256", digest)
	}
	return v4.NewSigner().SignHTTP(ctx, credentials, r, digest, s.Name, s.Region, time.Now(), s.asWritten)
}

// Presign returns a URL that is signed for the request r: whoever has the URL can make this
// request without credentials. The signature does not cover the body.
func (s Service) Presign(ctx context.Context, r *http.Request) (url string, err error) {
	credentials, err := s.Credentials.Retrieve(ctx)
	if err != nil {
		return "", err
	}
	url, _, err = v4.NewSigner().PresignHTTP(ctx, credentials, r, "UNSIGNED-PAYLOAD", s.Name, s.Region, time.Now(), s.asWritten)
	return url, err
}

// asWritten makes the signer use a path unchanged for S3, which expects a path that is
// escaped only once.
func (s Service) asWritten(o *v4.SignerOptions) { o.DisableURIPathEscaping = s.Name == S3 }
