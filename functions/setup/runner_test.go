package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestCloudFormationHasTheRunnerPutAndRemoved(t *testing.T) {
	objects, status := map[string]string{}, 0
	s3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch body, _ := io.ReadAll(r.Body); {
		case status != 0:
			w.WriteHeader(status)
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
	root := t.TempDir()
	for name, value := range map[string]string{"LAMBDA_TASK_ROOT": root, "AWS_ENDPOINT_URL": s3.URL, "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "s"} {
		t.Setenv(name, value)
	}
	ask := func(kind, id string) (made, error) {
		return runner(t.Context(), event{RequestType: kind, PhysicalResourceID: id, ResourceProperties: json.RawMessage(`{"Bucket":"stack-bucket","Layer":"1"}`)})
	}
	if _, err := ask("Create", ""); err == nil || !strings.Contains(err.Error(), "sam build") {
		t.Error(err)
	}
	var ids []string
	for _, program := range []string{"first", "second"} {
		commontest.OK(t, os.WriteFile(filepath.Join(root, "runner"), []byte(program), 0o600))
		want := fmt.Sprintf("runner/%x", sha256.Sum256([]byte(program)))
		m, err := ask("Update", "")
		if m.id != want || m.data["Object"] != "stack-bucket/"+want || err != nil || objects["/stack-bucket/"+m.id] != program {
			t.Errorf("%s: %v, %v", program, m, err)
		}
		ids = append(ids, m.id)
	}
	// After an update both are there, until CloudFormation has the first removed. A creation that
	// failed has another id.
	for _, id := range []string{ids[0], "stack-Runner-1"} {
		if m, err := ask("Delete", id); m.id != id || err != nil || len(objects) != 1 {
			t.Errorf("%v, %v, %v", m, err, objects)
		}
	}
	for _, s := range []int{http.StatusForbidden, http.StatusNotFound} {
		status = s
		_, put := ask("Update", ids[1])
		_, removed := ask("Delete", ids[1])
		if put == nil || (removed == nil) != (s == http.StatusNotFound) {
			t.Errorf("%d: %v, %v", s, put, removed)
		}
	}
}
