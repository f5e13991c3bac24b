package boot

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Names of environment variables. Lambda sets them, except for envSAMLocal (sam local), envDomain
// (template.yaml) and envEndpoint (an emulator of AWS).
const (
	envRegion   = "AWS_REGION"
	envKey      = "AWS_ACCESS_KEY_ID"
	envSecret   = "AWS_SECRET_ACCESS_KEY" //nolint:gosec // the name of a variable
	envToken    = "AWS_SESSION_TOKEN"     //nolint:gosec // the name of a variable
	envFunction = "AWS_LAMBDA_FUNCTION_NAME"
	envVersion  = "AWS_LAMBDA_FUNCTION_VERSION"
	envMemory   = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE" // MiB
	envSAMLocal = "AWS_SAM_LOCAL"                   // "true" under sam local
	envDomain   = "AWS_URL_SUFFIX"                  // set in AWS partitions whose domain is not amazonaws.com
	envEndpoint = "AWS_ENDPOINT_URL"                // endpoint of all AWS services, as for the AWS SDKs
)

// credentials returns the credentials of the function's role. They need no renewal, because Lambda
// ends a process before they expire.
func credentials() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		c := aws.Credentials{AccessKeyID: os.Getenv(envKey), SecretAccessKey: os.Getenv(envSecret), SessionToken: os.Getenv(envToken)}
		if !c.HasKeys() {
			return c, errors.New(envKey + " and " + envSecret + " are not set; a function's role sets them")
		}
		return c, nil
	})
}

// connections returns the connections of the WebSocket API whose URL is in the environment variable
// env.
func connections(env string) *relayserver.Connections {
	return relayserver.NewPoster(os.Getenv(env), os.Getenv(envRegion), credentials())
}

// endpoint returns the URL of an AWS service in this region, or that of its emulator.
func endpoint(service string) string {
	if stand := local().URL; stand != "" {
		return stand + "/" + service
	}
	if one := os.Getenv(envEndpoint); one != "" {
		return one
	}
	return "https://" + service + "." + os.Getenv(envRegion) + "." + cmp.Or(os.Getenv(envDomain), "amazonaws.com")
}

// InvokeSelf starts an asynchronous invocation of this version of this function: during a
// deployment, its name without a version may run other code. payload is JSON. Lambda tries again if
// the invocation fails. The code of an error is Unavailable.
func InvokeSelf(ctx context.Context, payload []byte) error {
	return Invoke(ctx, os.Getenv(envFunction)+":"+cmp.Or(os.Getenv(envVersion), "$LATEST"), payload)
}

// Invoke starts an asynchronous invocation of a function, given its name or ARN. The code of an
// error is Unavailable.
func Invoke(ctx context.Context, name string, payload []byte) error {
	lambda := Service("lambda")
	a, err := lambda.Do(ctx, awscall.Request{
		Method: http.MethodPost, URL: lambda.Endpoint + "/2015-03-31/functions/" + url.PathEscape(name) + "/invocations", Body: payload,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Amz-Invocation-Type": {"Event"}},
	}, 0) // the response body is not read
	switch a.Status {
	case http.StatusAccepted:
		return nil
	case 0:
		return storage.Errorf(storage.Unavailable, "the function could not invoke %q", name).Because(err)
	}
	return storage.Errorf(storage.Unavailable, "the function could not invoke %q: status %d", name, a.Status)
}

// Service returns a client for an AWS service in this region. Its requests time out after 10 s.
func Service(name string) awscall.Service {
	return awscall.Service{
		Name: name, Region: os.Getenv(envRegion), Endpoint: endpoint(name), Credentials: credentials(), Client: &http.Client{Timeout: 10 * time.Second},
	}
}
