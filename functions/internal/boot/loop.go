package boot

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"os"
	"strings"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/dormouse-mcp/dormouse/shared/loop"
	"github.com/dormouse-mcp/dormouse/shared/profile"
)

// envRuntime is where Lambda, and the emulator with a path behind the host, put the
// address of the Runtime API.
const envRuntime = "AWS_LAMBDA_RUNTIME_API"

// Start takes invocations until the process is stopped: with aws-lambda-go, but on
// one machine with a loop of our own, which costs a quarter of it. With [EnvCheck] it
// returns at once: everything before it has gone well.
func Start[E, R any](handle func(context.Context, E) (R, error)) {
	if os.Getenv(EnvCheck) != "" {
		return
	}
	if err := profile.Serve(os.Getenv(profile.Environment), os.Getenv(envFunction)); err != nil {
		Fail(err)
	}
	socket := os.Getenv(EnvRuntimeSocket)
	if socket == "" {
		lambda.Start(handle)
		return
	}
	_, instance, _ := strings.Cut(os.Getenv(envRuntime), "/")
	n := lambdacontext.MaxConcurrency()
	h := loop.Function(handle, func(ctx context.Context, inv loop.Invocation) context.Context { return invoked(ctx, inv, n) })
	Fail(loop.Serve(context.Background(), socket, instance, n, streaming(h), func(r loop.Report) {
		text, _ := json.Marshal(r) // strings always encode
		log.Printf("%s", text)
	}))
}

// Quiet is a handler that answers nothing.
func Quiet[E any](handle func(context.Context, E) error) func(context.Context, E) (any, error) {
	return func(ctx context.Context, e E) (any, error) { return nil, handle(ctx, e) }
}

// invoked is what aws-lambda-go gives a handler besides the event.
func invoked(ctx context.Context, inv loop.Invocation, concurrency int) context.Context {
	if concurrency == 1 {
		_ = os.Setenv("_X_AMZN_TRACE_ID", inv.Trace) // a name without "=" can be set
	}
	ctx = context.WithValue(ctx, "x-amzn-trace-id", inv.Trace) //nolint:revive,staticcheck // the key is AWS's
	return lambdacontext.NewContext(ctx, &lambdacontext.LambdaContext{AwsRequestID: inv.ID, InvokedFunctionArn: inv.ARN})
}

// streaming tells the loop of a streamed answer whether it is there already.
func streaming(h loop.Handler) loop.Handler {
	return func(ctx context.Context, inv loop.Invocation) (io.Reader, error) {
		answer, err := h(ctx, inv)
		if s, ok := answer.(*events.APIGatewayProxyStreamingResponse); ok {
			return streamed{s}, err
		}
		return answer, err
	}
}

type streamed struct {
	*events.APIGatewayProxyStreamingResponse
}

// Ready is true for a body in memory.
func (s streamed) Ready() bool {
	_, ok := s.Body.(interface{ Len() int })
	return ok
}
