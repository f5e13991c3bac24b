package relayserver

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Connections posts to the connections of one WebSocket API, and closes them. It is safe for
// concurrent use.
type Connections struct{ api awscall.Service }

// NewPoster returns the Connections of an @connections endpoint, https://HOST/STAGE, in a
// region. It signs no requests if credentials is nil.
func NewPoster(endpoint, region string, credentials aws.CredentialsProvider) *Connections {
	// A transport of its own shares no idle connections with other clients.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxIdle
	return &Connections{awscall.Service{
		Name: "execute-api", Region: region, Endpoint: strings.TrimSuffix(endpoint, "/"), Credentials: credentials, Client: &http.Client{Transport: transport},
	}}
}

const (
	maxIdle     = 10 // connections that wait for the next post
	posterTries = 2
	posterRest  = 500 * time.Millisecond // the longest wait before the second try
)

// Post implements storage.Poster. It returns Closed if the connection is gone, TooLarge
// over the gateway's limit, and Unavailable for any other failure.
func (c *Connections) Post(ctx context.Context, conn string, data []byte) error {
	switch status, err := c.ask(ctx, http.MethodPost, conn, data); {
	case err == nil:
		return nil
	case status == http.StatusGone:
		return storage.Errorf(storage.Closed, "the connection is gone").Because(err)
	case status == http.StatusRequestEntityTooLarge:
		return storage.Errorf(storage.TooLarge, "a frame of %d bytes is over the gateway's limit", len(data)).Because(err)
	default:
		return storage.Errorf(storage.Unavailable, "the gateway did not take a frame").Because(err)
	}
}

// Close implements storage.Clients. It succeeds if the connection is gone already. Errors:
// Unavailable.
func (c *Connections) Close(ctx context.Context, conn string) error {
	status, err := c.ask(ctx, http.MethodDelete, conn, nil)
	if err == nil || status == http.StatusGone {
		return nil
	}
	return storage.Errorf(storage.Unavailable, "the gateway did not close a connection").Because(err)
}

// ask sends a request, and sends it a second time after a temporary failure. status is 0 if
// there is no answer.
func (c *Connections) ask(ctx context.Context, method, conn string, data []byte) (status int, err error) {
	// AWS escapes the "=" of an id, and signs the path in that form.
	path := "/@connections/" + strings.ReplaceAll(url.PathEscape(conn), "=", "%3D")
	q := awscall.Request{Method: method, URL: c.api.Endpoint + path, Body: data}
	if data != nil {
		q.Header = http.Header{"Content-Type": {"application/octet-stream"}}
	}
	for try := 1; ; try++ {
		a, err := c.api.Do(ctx, q, 1<<10)
		if err == nil && a.Status < http.StatusMultipleChoices {
			return a.Status, nil
		}
		if a.Status >= http.StatusMultipleChoices {
			err = fmt.Errorf("%s of a connection: status %d, %s: %s", method, a.Status, cmp.Or(a.Header.Get("X-Amzn-Errortype"), "no type"), a.Body)
		} else {
			a.Status = 0
		}
		again := a.Status == 0 || a.Status == http.StatusTooManyRequests || a.Status >= http.StatusInternalServerError
		if !again || try == posterTries || storage.Rest(ctx, rand.N(posterRest)) != nil {
			return a.Status, err
		}
	}
}
