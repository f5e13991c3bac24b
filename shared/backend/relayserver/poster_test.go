package relayserver_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// gateway is an API of connections. It answers the first requests with a status, and those
// behind them with 200.
type gateway struct {
	*httptest.Server
	status int
	times  int64
	asked  atomic.Int64
	last   *http.Request
	body   string
}

func newGateway(t *testing.T, status int, times int64) *gateway {
	g := &gateway{status: status, times: times}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.last, g.body = r, string(body)
		if g.asked.Add(1) <= g.times {
			w.Header().Set("X-Amzn-Errortype", "SomeException")
			w.WriteHeader(g.status)
		}
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) poster(credentials aws.CredentialsProvider) *relayserver.Connections {
	return relayserver.NewPoster(g.URL+"/stage", "eu-west-1", credentials)
}

func TestPosterTellsWhatTheGatewaySaid(t *testing.T) {
	const always = 1000
	for name, c := range map[string]struct {
		status      int
		times       int64
		post, close storage.Code
		asked       int64
	}{
		"taken":          {200, 0, "", "", 1},
		"gone":           {410, always, storage.Closed, "", 1},
		"too large":      {413, always, storage.TooLarge, storage.Unavailable, 1},
		"throttled":      {429, always, storage.Unavailable, storage.Unavailable, 2},
		"throttled once": {429, 1, "", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, c.status, c.times)
			commontest.EqualIn(t, "post", c.post, storage.CodeOf(g.poster(nil).Post(t.Context(), "c1", []byte("{}"))))
			commontest.EqualIn(t, "requests", c.asked, g.asked.Swap(0))
			commontest.EqualIn(t, "the last", "POST /stage/@connections/c1 {}", g.last.Method+" "+g.last.URL.Path+" "+g.body)
			commontest.EqualIn(t, "close", c.close, storage.CodeOf(g.poster(nil).Close(t.Context(), "c1")))
			commontest.EqualIn(t, "the last", "DELETE /stage/@connections/c1", g.last.Method+" "+g.last.URL.Path)
		})
	}
}

func TestPosterSignsWithTheCredentialsItIsGivenAndNoOthers(t *testing.T) {
	g := newGateway(t, 200, 0)
	role := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "THEROLE", SecretAccessKey: "secret", SessionToken: "token"}, nil
	})
	commontest.OK(t, g.poster(role).Post(t.Context(), "c1", []byte("{}")))
	commontest.Contains(t, "signed", "THEROLE/", g.last.Header.Get("Authorization"))
	commontest.OK(t, g.poster(nil).Post(t.Context(), "c1", []byte("{}")))
	commontest.EqualIn(t, "signed", "", g.last.Header.Get("Authorization"))
}
