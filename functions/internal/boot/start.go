package boot

import (
	"context"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/operate/pprofsock"
)

// Serve handles invocations until the process is stopped. The function build makes the handler for
// one version of the servers file. Serve calls build at the start, and for each version that an
// operator pushes. Invocations look for a new version at most every 30 s (the constant renewed).
func Serve[E, R any](build func(*wiring.Function) (func(context.Context, E) (R, error), error)) {
	o, err := open()
	if err != nil {
		fail(err)
	}
	servers, err := own()
	if err != nil {
		fail(err)
	}
	h, err := newLatest(o, servers, build)
	if err != nil {
		fail(err)
	}
	if err := pprofsock.Serve(os.Getenv(pprofsock.Environment), os.Getenv(envFunction)); err != nil {
		fail(err)
	}
	lambda.Start(func(ctx context.Context, event E) (R, error) {
		handle, err := h.get(ctx)
		if err != nil {
			var none R
			return none, err
		}
		return handle(ctx, event)
	})
}
