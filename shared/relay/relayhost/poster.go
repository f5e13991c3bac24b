package relayhost

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// PosterOptions are the settings of NewPoster besides the endpoint.
type PosterOptions struct {
	Region      string
	Credentials aws.CredentialsProvider // nil: requests are not signed
}

// Connections posts to the connections of one WebSocket API, and closes them. It
// implements session.Clients. It is safe for concurrent use.
//
// It makes its two kinds of requests without AWS's client, which would add a hundredth to
// the size of each function.
type Connections struct {
	endpoint string
	options  PosterOptions
	client   *http.Client
}

// NewPoster returns the Connections of an @connections endpoint, https://HOST/STAGE.
func NewPoster(endpoint string, o PosterOptions) *Connections {
	// A transport of its own shares no idle connections with other clients.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxIdle
	return &Connections{endpoint: strings.TrimSuffix(endpoint, "/"), options: o, client: &http.Client{Transport: transport}}
}

const (
	maxIdle     = 10 // connections that wait for the next post
	posterTries = 2
	posterRest  = 500 * time.Millisecond // at most, before the second try
)

// Post implements session.Poster. It returns Closed if the connection is gone, TooLarge
// over the gateway's limit, and Unavailable for any other failure.
func (c *Connections) Post(ctx context.Context, conn string, data []byte) error {
	switch status, err := c.ask(ctx, http.MethodPost, conn, data); {
	case err == nil:
		return nil
	case status == http.StatusGone:
		return session.Errorf(session.Closed, "the connection is gone").Because(err)
	case status == http.StatusRequestEntityTooLarge:
		return session.Errorf(session.TooLarge, "a frame of %d bytes is over the gateway's limit", len(data)).Because(err)
	default:
		return session.Errorf(session.Unavailable, "the gateway did not take a frame").Because(err)
	}
}

// Close implements session.Clients. It succeeds if the connection is gone already, and
// fails with Unavailable otherwise.
func (c *Connections) Close(ctx context.Context, conn string) error {
	status, err := c.ask(ctx, http.MethodDelete, conn, nil)
	if err == nil || status == http.StatusGone {
		return nil
	}
	return session.Errorf(session.Unavailable, "the gateway did not close a connection").Because(err)
}

// ask sends a request. It sends the request a second time if that may succeed. status is
// 0 if there is no answer.
func (c *Connections) ask(ctx context.Context, method, conn string, data []byte) (status int, err error) {
	for try := 1; ; try++ {
		status, err = c.send(ctx, method, conn, data)
		again := status == 0 || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
		if err == nil || !again || try == posterTries {
			return status, err
		}
		if waitFor(ctx, rand.N(posterRest)) != nil {
			return status, err
		}
	}
}

func (c *Connections) send(ctx context.Context, method, conn string, data []byte) (status int, err error) {
	// AWS escapes the "=" of an id, and signs the path in that form.
	path := "/@connections/" + strings.ReplaceAll(url.PathEscape(conn), "=", "%3D")
	r, err := http.NewRequestWithContext(ctx, method, c.endpoint+path, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	if data != nil {
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	if c.options.Credentials != nil {
		creds, err := c.options.Credentials.Retrieve(ctx)
		if err != nil {
			return 0, err
		}
		sum := sha256.Sum256(data)
		if err := v4.NewSigner().SignHTTP(ctx, creds, r, hex.EncodeToString(sum[:]), "execute-api", c.options.Region, time.Now()); err != nil {
			return 0, err
		}
	}
	res, err := c.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }() // it is read
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if res.StatusCode >= http.StatusMultipleChoices {
		return res.StatusCode, fmt.Errorf("%s of a connection: status %d, %s: %s", method, res.StatusCode, cmp.Or(res.Header.Get("X-Amzn-Errortype"), "no type"), answer)
	}
	if err != nil {
		return 0, err
	}
	return res.StatusCode, nil
}
