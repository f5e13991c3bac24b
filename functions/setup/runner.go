package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
)

// folder is the prefix of runners in the bucket. The rest of a runner's name is the SHA-256 of the
// program, so that old and new functions find their own runners during a deployment.
const folder = "runner/"

// runner uploads the program that runs boxes to the stack's bucket. If an update uploads another
// runner, CloudFormation later deletes the old one, or the new one if the update fails.
func runner(ctx context.Context, e event) (made, error) {
	id := e.PhysicalResourceID
	var want struct{ Bucket string }
	if err := json.Unmarshal(e.ResourceProperties, &want); err != nil {
		return made{id: id}, err
	}
	if want.Bucket == "" {
		return made{id: id}, errors.New("the resource names no Bucket")
	}
	if e.RequestType == "Delete" {
		if !strings.HasPrefix(id, folder) {
			return made{id: id}, nil // the resource was never created
		}
		return made{id: id}, object(ctx, http.MethodDelete, want.Bucket, id, nil)
	}
	program, err := os.ReadFile(filepath.Join(os.Getenv("LAMBDA_TASK_ROOT"), "runner"))
	if err != nil {
		return made{id: id}, fmt.Errorf("the package of this function has no runner, which sam build puts there: %w", err)
	}
	sum := sha256.Sum256(program)
	id = folder + hex.EncodeToString(sum[:])
	return made{id, map[string]string{"Object": want.Bucket + "/" + id}}, object(ctx, http.MethodPut, want.Bucket, id, program)
}

// object sends a request for an object in a bucket. Deleting an object that does not exist is no
// error.
func object(ctx context.Context, method, bucket, name string, body []byte) error {
	s := boot.Service(awscall.S3)
	s.Client = &http.Client{Timeout: time.Minute}
	var a awscall.Answer
	var err error
	again(ctx, func() (denied bool) {
		a, err = s.Do(ctx, awscall.Request{Method: method, URL: s.Endpoint + "/" + bucket + "/" + name, Body: body}, 4<<10)
		return err == nil && a.Status == http.StatusForbidden
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s of %s in the bucket: %w", method, name, err)
	case a.Status/100 == 2, method == http.MethodDelete && a.Status == http.StatusNotFound:
		return nil
	default:
		return fmt.Errorf("%s of %s in the bucket: S3 answers %d: %s", method, name, a.Status, a.Body)
	}
}
