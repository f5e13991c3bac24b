package relay

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi/types"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// PosterOptions are what a Poster needs besides the endpoint. The zero value of
// a field leaves the SDK's own.
type PosterOptions struct {
	// Socket is a unix socket to reach the endpoint by, on one machine.
	Socket      string
	Region      string
	Credentials aws.CredentialsProvider
}

type connections struct {
	api *apigatewaymanagementapi.Client
}

// NewPoster posts to the connections of a WebSocket API at its @connections
// endpoint, https://HOST/STAGE.
func NewPoster(endpoint string, o PosterOptions) Poster {
	opts := apigatewaymanagementapi.Options{
		BaseEndpoint: aws.String(endpoint), Region: o.Region, Credentials: o.Credentials,
		RetryMaxAttempts: 2,
	}
	if opts.Region == "" {
		opts.Region = "local"
	}
	if o.Socket != "" {
		opts.HTTPClient = &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", o.Socket)
			},
		}}
	}
	if opts.Credentials == nil {
		opts.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		})
	}
	return &connections{apigatewaymanagementapi.New(opts)}
}

// Post implements Poster.
func (c *connections) Post(ctx context.Context, conn string, data []byte) error {
	_, err := c.api.PostToConnection(ctx, &apigatewaymanagementapi.PostToConnectionInput{ConnectionId: &conn, Data: data})
	var gone *types.GoneException
	var large *types.PayloadTooLargeException
	switch {
	case err == nil:
		return nil
	case errors.As(err, &gone):
		return session.Errorf(session.Closed, "the connection is gone").Because(err)
	case errors.As(err, &large):
		return session.Errorf(session.TooLarge, "a frame of %d bytes is over the gateway's limit", len(data)).Because(err)
	default:
		return session.Errorf(session.Unavailable, "the gateway did not take a frame").Because(err)
	}
}
