// Command traces is the Lambda function that sends spans to an OpenTelemetry collector. It
// makes them from the log lines of the other functions and of boxes, which CloudWatch
// Logs sends to it some seconds later. So no request waits for the collector.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	f, err := open(os.Environ())
	if err != nil {
		log.Error("the function cannot start", "error", err)
		os.Exit(1)
	}
	lambda.Start(func(ctx context.Context, e events.CloudwatchLogsEvent) error {
		err := f.forward(ctx, e)
		if err != nil {
			log.Error("spans are not sent; Lambda tries this event again, twice", "error", err)
		}
		return err
	})
}
