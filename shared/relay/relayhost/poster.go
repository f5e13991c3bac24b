package relayhost

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi/types"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// PosterOptions are the settings of NewPoster besides the endpoint.
type PosterOptions struct {
	Region      string
	Credentials aws.CredentialsProvider
}

// Connections posts to the connections of one WebSocket API, and closes them. It
// implements session.Clients. It is safe for concurrent use.
type Connections struct {
	api *apigatewaymanagementapi.Client
}

// NewPoster returns the Connections of an @connections endpoint, https://HOST/STAGE.
func NewPoster(endpoint string, o PosterOptions) *Connections {
	return &Connections{api: apigatewaymanagementapi.New(apigatewaymanagementapi.Options{
		BaseEndpoint: aws.String(endpoint), Region: o.Region, Credentials: o.Credentials,
		RetryMaxAttempts: 2,
	})}
}

// Post implements session.Poster. It returns Closed if the connection is gone, TooLarge
// over the gateway's limit, and Unavailable for any other failure.
func (c *Connections) Post(ctx context.Context, conn string, data []byte) error {
	_, err := c.api.PostToConnection(ctx, &apigatewaymanagementapi.PostToConnectionInput{ConnectionId: &conn, Data: data})
	var large *types.PayloadTooLargeException
	switch {
	case err == nil:
		return nil
	case isGone(err):
		return session.Errorf(session.Closed, "the connection is gone").Because(err)
	case errors.As(err, &large):
		return session.Errorf(session.TooLarge, "a frame of %d bytes is over the gateway's limit", len(data)).Because(err)
	default:
		return session.Errorf(session.Unavailable, "the gateway did not take a frame").Because(err)
	}
}

// Close implements session.Clients. It succeeds if the connection is gone already, and
// fails with Unavailable otherwise.
func (c *Connections) Close(ctx context.Context, conn string) error {
	_, err := c.api.DeleteConnection(ctx, &apigatewaymanagementapi.DeleteConnectionInput{ConnectionId: &conn})
	if err == nil || isGone(err) {
		return nil
	}
	return session.Errorf(session.Unavailable, "the gateway did not close a connection").Because(err)
}

func isGone(err error) bool {
	var gone *types.GoneException
	return errors.As(err, &gone)
}
