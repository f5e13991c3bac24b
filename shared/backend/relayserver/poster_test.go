package relayserver_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestPosterTellsWhatTheGatewaySaid(t *testing.T) {
	for name, c := range map[string]struct {
		status      int
		errorType   string
		post, close storage.Code
	}{
		"taken":     {200, "", "", ""},
		"gone":      {410, "GoneException", storage.Closed, ""},
		"too large": {413, "PayloadTooLargeException", storage.TooLarge, storage.Unavailable},
		"throttled": {429, "LimitExceededException", storage.Unavailable, storage.Unavailable},
		"forbidden": {403, "ForbiddenException", storage.Unavailable, storage.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			p := posterTo(t, httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.Method+" "+r.URL.Path)
				w.Header().Set("X-Amzn-Errortype", c.errorType)
				w.WriteHeader(c.status)
			})))
			if err := p.Post(t.Context(), "c1", []byte("{}")); storage.CodeOf(err) != c.post {
				t.Errorf("post: %v", err)
			}
			if err := p.Close(t.Context(), "c1"); storage.CodeOf(err) != c.close {
				t.Errorf("close: %v", err)
			}
			want := []string{"POST /stage/@connections/c1", "DELETE /stage/@connections/c1"}
			commontest.Same(t, want, slices.Compact(asked))
		})
	}
}

func TestPosterSignsWithTheCredentialsItIsGivenAndNoOthers(t *testing.T) {
	var signed string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { signed = r.Header.Get("Authorization") }))
	defer server.Close()
	role := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "THEROLE", SecretAccessKey: "secret", SessionToken: "token"}, nil
	})
	for name, credentials := range map[string]aws.CredentialsProvider{
		"THEROLE/": role,
		"":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			signed = ""
			commontest.OK(t, relayserver.NewPoster(server.URL, "eu-west-1", credentials).Post(t.Context(), "c1", []byte("{}")))
			if !strings.Contains(signed, name) || name == "" && signed != "" {
				t.Errorf("signed %q, want by %q", signed, name)
			}
		})
	}
}

func TestPosterUsesItsConnectionAgainAndAnotherWhenThatIsGone(t *testing.T) {
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != "{}" || r.ContentLength != 2 {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	p := posterTo(t, server)
	post := func(want int64) {
		t.Helper()
		commontest.OK(t, p.Post(t.Context(), "c1", []byte("{}")))
		if n := opened.Load(); n != want {
			t.Errorf("%d connections, want %d", n, want)
		}
	}
	post(1)
	post(1)
	server.CloseClientConnections()
	post(2)
}

// posterTo returns Connections that post to a server.
func posterTo(t *testing.T, server *httptest.Server) *relayserver.Connections {
	t.Helper()
	server.Start()
	t.Cleanup(server.Close)
	return relayserver.NewPoster(server.URL+"/stage", "local", nil)
}

func TestPosterAsksOnceMoreWhenThereIsNoRoom(t *testing.T) {
	for failures, want := range map[int64]storage.Code{1: "", 2: storage.Unavailable} {
		var asked atomic.Int64
		p := posterTo(t, httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) <= failures {
				w.Header().Set("X-Amzn-Errortype", "LimitExceededException")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})))
		if err := p.Post(t.Context(), "c1", []byte("{}")); storage.CodeOf(err) != want || asked.Load() != 2 {
			t.Errorf("asked %d times: %v", asked.Load(), err)
		}
	}
}

func TestPosterGivesUpWithItsCaller(t *testing.T) {
	begun := make(chan struct{})
	p := posterTo(t, httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices a client that leaves only after it has read the body
		close(begun)
		<-r.Context().Done()
	})))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if err := p.Post(ctx, "c1", []byte("{}")); storage.CodeOf(err) != storage.Unavailable {
		t.Errorf("post: %v", err)
	}
}
