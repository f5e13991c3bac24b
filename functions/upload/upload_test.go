package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
)

func TestCloudFormationHasTheRunnerPutAndRemoved(t *testing.T) {
	objects, status, fails := map[string]string{}, 0, 0
	s3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch body, _ := io.ReadAll(r.Body); {
		case status != 0:
			w.WriteHeader(status)
		case fails > 0:
			fails--
			w.WriteHeader(http.StatusForbidden)
		case !strings.Contains(r.Header.Get("Authorization"), "/s3/aws4_request"):
			w.WriteHeader(http.StatusForbidden)
		case r.Method == http.MethodPut:
			objects[r.URL.Path] = string(body)
		case r.Method == http.MethodDelete:
			delete(objects, r.URL.Path)
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer s3.Close()
	u := uploader{
		program: filepath.Join(t.TempDir(), "runner"),
		s3: awscall.Service{Name: awscall.S3, Region: "eu-west-1", Endpoint: s3.URL, Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "K", SecretAccessKey: "s"}, nil
		})},
	}
	ask := func(kind cfn.RequestType, id string) (string, map[string]any, error) {
		return u.handle(t.Context(), cfn.Event{RequestType: kind, PhysicalResourceID: id, ResourceProperties: map[string]any{"Bucket": "stack-bucket", "Version": "1"}})
	}
	if _, _, err := ask(cfn.RequestCreate, ""); err == nil || !strings.Contains(err.Error(), "sam build") {
		t.Error(err)
	}
	var ids []string
	for n, program := range []string{"first", "second"} {
		if err := os.WriteFile(u.program, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("runner/%x", sha256.Sum256([]byte(program)))
		fails = 2 // the rights of a new role come late
		kind := []cfn.RequestType{cfn.RequestCreate, cfn.RequestUpdate}[n]
		id, data, err := ask(kind, "")
		if id != want || data["Object"] != "stack-bucket/"+want || err != nil || objects["/stack-bucket/"+id] != program {
			t.Errorf("%s: %s, %v, %v", kind, id, data, err)
		}
		ids = append(ids, id)
	}
	// After an update both are there, until CloudFormation has the first removed.
	if len(objects) != 2 {
		t.Errorf("%v", objects)
	}
	if id, _, err := ask(cfn.RequestDelete, ids[0]); id != ids[0] || err != nil || len(objects) != 1 {
		t.Errorf("%s, %v, %v", id, err, objects)
	}
	// A creation that failed has another id.
	if _, _, err := ask(cfn.RequestDelete, "stack-Runner-1"); err != nil || len(objects) != 1 {
		t.Error(err, objects)
	}
	for _, s := range []int{http.StatusForbidden, http.StatusNotFound} {
		status = s
		_, _, put := ask(cfn.RequestUpdate, ids[1])
		_, _, removed := ask(cfn.RequestDelete, ids[1])
		if put == nil || (removed == nil) != (s == http.StatusNotFound) {
			t.Errorf("%d: %v, %v", s, put, removed)
		}
	}
}
