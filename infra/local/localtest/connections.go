package localtest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi"
)

// Connections is AWS's own client of an @connections API.
type Connections struct {
	t   testing.TB
	api *apigatewaymanagementapi.Client
}

// NewConnections returns a client of an endpoint, http://HOST/STAGE. It connects with
// dial; nil dials the host.
func NewConnections(t testing.TB, endpoint string, dial func(context.Context, string, string) (net.Conn, error)) Connections {
	transport := &http.Transport{DialContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	return Connections{t, apigatewaymanagementapi.New(apigatewaymanagementapi.Options{
		BaseEndpoint: &endpoint, Region: "local", RetryMaxAttempts: 1,
		HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})}
}

// Post sends a message to a connection.
func (c Connections) Post(id, data string) error {
	_, err := c.api.PostToConnection(c.t.Context(), &apigatewaymanagementapi.PostToConnectionInput{ConnectionId: &id, Data: []byte(data)})
	return err
}

// Delete closes a connection.
func (c Connections) Delete(id string) error {
	_, err := c.api.DeleteConnection(c.t.Context(), &apigatewaymanagementapi.DeleteConnectionInput{ConnectionId: &id})
	return err
}

// IsError reports whether err is of the SDK's error type T.
func IsError[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}
