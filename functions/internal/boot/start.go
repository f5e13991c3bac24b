package boot

import (
	"context"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/dormouse-mcp/dormouse/shared/profile"
)

// Start takes invocations until the process is stopped. With [EnvCheck] it returns at
// once, because the function has shown that it can start.
func Start[E, R any](handle func(context.Context, E) (R, error)) {
	if os.Getenv(EnvCheck) != "" {
		return
	}
	if err := profile.Serve(os.Getenv(profile.Environment), os.Getenv(envFunction)); err != nil {
		Fail(err)
	}
	lambda.Start(handle)
}

// Quiet returns a handler with an empty answer.
func Quiet[E any](handle func(context.Context, E) error) func(context.Context, E) (any, error) {
	return func(ctx context.Context, e E) (any, error) { return nil, handle(ctx, e) }
}
