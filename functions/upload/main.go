// Command upload is the Lambda function that puts the runner of boxes into the stack's bucket.
// Its package has the runner. CloudFormation invokes it when the stack is made, when the
// package has changed, and when the stack is deleted. No message waits for it.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
)

// folder is where runners are in the bucket. Each has the SHA-256 of its contents as its
// name, so a box that starts during a deployment gets the runner that its function means.
const folder = "runner/"

func main() {
	lambda.Start(cfn.LambdaWrap(uploader{
		program: filepath.Join(os.Getenv("LAMBDA_TASK_ROOT"), "runner"), pause: 4 * time.Second,
		s3: awscall.Service{
			Name: awscall.S3, Region: os.Getenv("AWS_REGION"), Credentials: aws.CredentialsProviderFunc(credentials), Client: &http.Client{Timeout: time.Minute},
			Endpoint: cmp.Or(os.Getenv("AWS_ENDPOINT_URL"), "https://s3."+os.Getenv("AWS_REGION")+"."+cmp.Or(os.Getenv("AWS_URL_SUFFIX"), "amazonaws.com")),
		},
	}.handle))
}

func credentials(context.Context) (aws.Credentials, error) {
	return aws.Credentials{
		AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: os.Getenv("AWS_SESSION_TOKEN"),
	}, nil
}

type uploader struct {
	program string
	s3      awscall.Service
	pause   time.Duration // between tries
}

const tries = 5

// handle does what CloudFormation asks for. The id of the resource is the runner's name in
// the bucket. After an update with another runner, CloudFormation has the old one removed;
// if the update fails, it has the new one removed.
func (u uploader) handle(ctx context.Context, e cfn.Event) (id string, data map[string]any, err error) {
	bucket, _ := e.ResourceProperties["Bucket"].(string)
	if bucket == "" {
		return e.PhysicalResourceID, nil, errors.New("the resource names no Bucket")
	}
	if e.RequestType == cfn.RequestDelete {
		if !strings.HasPrefix(e.PhysicalResourceID, folder) {
			return e.PhysicalResourceID, nil, nil // it was never made
		}
		return e.PhysicalResourceID, nil, u.ask(ctx, http.MethodDelete, bucket, e.PhysicalResourceID, nil)
	}
	program, err := os.ReadFile(u.program)
	if err != nil {
		return e.PhysicalResourceID, nil, fmt.Errorf("the package has no runner, which sam build puts there: %w", err)
	}
	sum := sha256.Sum256(program)
	id = folder + hex.EncodeToString(sum[:])
	return id, map[string]any{"Object": bucket + "/" + id}, u.ask(ctx, http.MethodPut, bucket, id, program)
}

// ask makes a request for an object, and repeats it if it fails: the rights of a role that
// was just made come after some seconds. A bucket that is gone has no object any more.
func (u uploader) ask(ctx context.Context, method, bucket, object string, body []byte) error {
	for try := 1; ; try++ {
		a, err := u.s3.Do(ctx, awscall.Request{Method: method, URL: u.s3.Endpoint + "/" + bucket + "/" + object, Body: body}, 4<<10)
		switch {
		case err == nil && (a.Status/100 == 2 || method == http.MethodDelete && a.Status == http.StatusNotFound):
			return nil
		case try < tries:
			time.Sleep(u.pause)
		case err != nil:
			return fmt.Errorf("%s of %s in the bucket: %w", method, object, err)
		default:
			return fmt.Errorf("%s of %s in the bucket: S3 answers %d: %s", method, object, a.Status, a.Body)
		}
	}
}
