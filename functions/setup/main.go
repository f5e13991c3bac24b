// Command setup is the Lambda function that CloudFormation calls during a deployment. It creates
// what a template cannot create. Only CloudFormation may call it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/aws/aws-lambda-go/lambda"
)

// event is a request from CloudFormation.
type event struct {
	RequestType           string // Create, Update or Delete
	ResourceType          string
	ResponseURL           string
	StackID               string `json:"StackId"`
	RequestID             string `json:"RequestId"`
	LogicalResourceID     string `json:"LogicalResourceId"`
	PhysicalResourceID    string `json:"PhysicalResourceId"`
	ResourceProperties    json.RawMessage
	OldResourceProperties json.RawMessage
}

// made is a custom resource: its physical id, and the attributes that the template can read.
type made struct {
	id   string
	data map[string]string
}

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	lambda.Start(func(ctx context.Context, e event) error { return handle(ctx, log, e) })
}

// handle creates, updates or deletes a resource, and reports the result to CloudFormation. Without
// that report, CloudFormation waits until the deployment times out. If the report fails, handle
// returns an error, and Lambda tries again.
func handle(ctx context.Context, log *slog.Logger, e event) error {
	var m made
	var err error
	switch e.ResourceType { // each function is idempotent, because CloudFormation may send an event twice
	case "Custom::Tickets":
		m, err = tickets(ctx, e)
	case "Custom::Runner":
		m, err = runner(ctx, e)
	default:
		err = fmt.Errorf("this release knows no resource of the kind %s", e.ResourceType)
	}
	answer := map[string]any{
		"Status": "SUCCESS", "StackId": e.StackID, "RequestId": e.RequestID, "LogicalResourceId": e.LogicalResourceID,
		"PhysicalResourceId": cmp.Or(m.id, e.PhysicalResourceID, e.RequestID), "Data": m.data, "NoEcho": true,
	}
	if err != nil {
		answer["Status"], answer["Reason"] = "FAILED", err.Error()
		log.ErrorContext(ctx, "resource not made", "kind", e.ResourceType, "request", e.RequestType, "error", err)
	} else {
		log.InfoContext(ctx, "resource made", "kind", e.ResourceType, "request", e.RequestType)
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, e.ResponseURL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r) // the URL is signed for a request without a content type, so none is set
	if err != nil {
		return fmt.Errorf("CloudFormation did not get the answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }() // the body is not read
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("CloudFormation did not get the answer: status %d", res.StatusCode)
	}
	return nil
}
