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

// Variables of a function that Lambda, sam local (envSAMLocal), the template (envDomain) or
// an emulator of AWS (envEndpoint) sets.
const (
	envRegion   = "AWS_REGION"
	envKey      = "AWS_ACCESS_KEY_ID"
	envSecret   = "AWS_SECRET_ACCESS_KEY" //nolint:gosec // the name of a variable
	envToken    = "AWS_SESSION_TOKEN"     //nolint:gosec // as above
	envFunction = "AWS_LAMBDA_FUNCTION_NAME"
	envVersion  = "AWS_LAMBDA_FUNCTION_VERSION"
	envMemory   = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE" // MiB
	envSAMLocal = "AWS_SAM_LOCAL"                   // "true" under sam local
	envDomain   = "AWS_URL_SUFFIX"                  // set by the template where it is not amazonaws.com
	envEndpoint = "AWS_ENDPOINT_URL"                // all services of AWS, as AWS's own tools read it
)

// credentials returns the credentials of the function's role. They are never renewed in a
// process: Lambda starts the function anew instead.
func credentials() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		c := aws.Credentials{AccessKeyID: os.Getenv(envKey), SecretAccessKey: os.Getenv(envSecret), SessionToken: os.Getenv(envToken)}
		if !c.HasKeys() {
			return c, errors.New(envKey + " and " + envSecret + " are not set; a function's role sets them")
		}
		return c, nil
	})
}

// connections returns a poster for the WebSocket API whose endpoint a variable names.
func connections(env string) *relayserver.Connections {
	return relayserver.NewPoster(os.Getenv(env), os.Getenv(envRegion), credentials())
}

// endpoint returns the address of an AWS service in this region, or of its stand-in on
// one machine.
func endpoint(service string) string {
	if stand := local().URL; stand != "" {
		return stand + "/" + service
	}
	if one := os.Getenv(envEndpoint); one != "" {
		return one
	}
	return "https://" + service + "." + os.Getenv(envRegion) + "." + cmp.Or(os.Getenv(envDomain), "amazonaws.com")
}

// InvokeSelf starts an invocation of this same version of this function with a payload
// (JSON), and does not wait for it. Lambda repeats an invocation that fails. While a
// deployment shifts traffic, the name without a version would reach other code.
//
// Errors: Unavailable.
func InvokeSelf(ctx context.Context, payload []byte) error {
	return Invoke(ctx, os.Getenv(envFunction)+":"+cmp.Or(os.Getenv(envVersion), "$LATEST"), payload)
}

// Invoke starts an invocation of a function, by its name or ARN, and does not wait
// for it.
//
// Errors: Unavailable.
func Invoke(ctx context.Context, name string, payload []byte) error {
	lambda := Service("lambda")
	a, err := lambda.Do(ctx, awscall.Request{
		Method: http.MethodPost, URL: lambda.Endpoint + "/2015-03-31/functions/" + url.PathEscape(name) + "/invocations", Body: payload,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Amz-Invocation-Type": {"Event"}},
	}, 0) // the body stays unread
	switch a.Status {
	case http.StatusAccepted:
		return nil
	case 0:
		return storage.Errorf(storage.Unavailable, "the function could not invoke %q", name).Because(err)
	}
	return storage.Errorf(storage.Unavailable, "the function could not invoke %q: status %d", name, a.Status)
}

// Service returns an AWS service in this region, whose requests end after 10 s.
func Service(name string) awscall.Service {
	return awscall.Service{
		Name: name, Region: os.Getenv(envRegion), Endpoint: endpoint(name), Credentials: credentials(), Client: &http.Client{Timeout: 10 * time.Second},
	}
}
