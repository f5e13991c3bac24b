package awscall_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
)

func role() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "THEROLE", SecretAccessKey: "secret"}, nil
	})
}

func TestARequestIsSignedForItsService(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("a long answer"))
	}))
	defer server.Close()
	for name, service := range map[string]awscall.Service{
		"a service": {Name: "logs", Credentials: role()}, "S3": {Name: awscall.S3, Credentials: role()}, "no credentials": {Name: "logs"},
	} {
		service.Region = "eu-west-1"
		a, err := service.Do(t.Context(), awscall.Request{Method: http.MethodPost, URL: server.URL + "/", Header: http.Header{"X-Amz-Target": {"x"}}, Body: []byte("{}")}, 6)
		if err != nil || a.Status != http.StatusTeapot || string(a.Body) != "a long" {
			t.Errorf("%s: %d %q, %v", name, a.Status, a.Body, err)
		}
		signed := strings.Contains(got.Get("Authorization"), "THEROLE/") && strings.Contains(got.Get("Authorization"), "/eu-west-1/"+service.Name+"/")
		if signed != (service.Credentials != nil) || got.Get("X-Amz-Target") != "x" || (got.Get("X-Amz-Content-Sha256") != "") != (name == "S3") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnAnswerThatBreaksOffHasItsStatus(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = w.Write([]byte("half"))
	}))
	defer server.Close()
	a, err := awscall.Service{}.Do(t.Context(), awscall.Request{Method: http.MethodGet, URL: server.URL}, 100)
	if err == nil || a.Status != http.StatusOK {
		t.Errorf("%d, %v", a.Status, err)
	}
}
