package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestAddressesThatAreNotPublicAreNotReached(t *testing.T) {
	w := newWorld(t, storagetest.NewMemory(), http.NotFoundHandler())
	far, err := url.Parse(w.server.URL)
	commontest.OK(t, err)
	w.server.Private = false
	for _, host := range []string{
		"127.0.0.1", "localhost", "[::1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]", "2130706433", "0x7f.1", "0177.0.0.1",
		"10.0.0.1", "169.254.169.254", "100.64.0.1", "[fd00:ec2::254]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
	} {
		w.server.URL = "http://" + host + ":" + far.Port() + "/mcp"
		err := w.refusal()
		// A name such as 2130706433 may also be one that no resolver knows.
		if err == nil || !strings.Contains(err.Error(), "is not public") && !strings.Contains(err.Error(), "no such host") && !strings.Contains(err.Error(), "lookup") {
			t.Errorf("%s: %v", host, err)
		}
	}
	commontest.EqualIn(t, "requests arrived", 0, w.upcalls.Load())
}

func TestAnotherOriginGetsNoRequest(t *testing.T) {
	secret := make(chan string, 10)
	trap := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { secret <- r.Header.Get("X-Key") }))
	defer trap.Close()
	for name, c := range map[string]struct {
		transport remote.Transport
		up        http.HandlerFunc
	}{
		"302": {"", http.RedirectHandler(trap.URL, http.StatusFound).ServeHTTP},
		"307": {"", http.RedirectHandler(trap.URL, http.StatusTemporaryRedirect).ServeHTTP},
		"308": {"", http.RedirectHandler(trap.URL, http.StatusPermanentRedirect).ServeHTTP},
		"the endpoint of HTTP+SSE": {"sse", func(rw http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				rw.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			rw.Header().Set("Content-Type", wire.MediaSSE)
			_, _ = io.WriteString(rw, "event: endpoint\ndata: "+trap.URL+"/latest\n\n")
		}},
	} {
		w := newWorld(t, storagetest.NewMemory(), c.up)
		w.server.Transport, w.server.Headers = c.transport, map[string]string{"X-Key": "hunter2-hunter2"}
		commontest.Contains(t, name, "redirects to another origin", fmt.Sprint(w.refusal()))
	}
	select {
	case s := <-secret:
		t.Errorf("the other origin got a request with %q", s)
	default:
	}
}

func TestSecretsOfHeadersAreInNoError(t *testing.T) {
	forgotten := false
	w := newWorld(t, storagetest.NewMemory(), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusUnauthorized)
		_, _ = rw.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"bad token ` + r.Header.Get("Authorization") + ` of ` + r.URL.RawQuery + `"}}`))
	}))
	w.server.URL += "?key=pencil-pencil"
	for name, set := range map[string]func(){
		"written": func() { w.server.Headers = map[string]string{"Authorization": "Bearer hunter2-hunter2"} },
		"from a command": func() {
			w.server.Headers, w.server.Commands = nil, map[string]string{"Authorization": "pass far"}
			w.server.Run = func(_ context.Context, command string) (string, func(), error) {
				return "Bearer hunter2-hunter2 of " + command, func() { forgotten = true }, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			set()
			err := w.refusal()
			if err == nil || !strings.Contains(err.Error(), "HTTP 401 Unauthorized: bad token") || !strings.Contains(err.Error(), "the headers in the servers file") || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "pencil-") {
				t.Error(err)
			}
		})
	}
	commontest.EqualIn(t, "the value that the server refused was forgotten", true, forgotten)
	w.server.Run = func(context.Context, string) (string, func(), error) {
		return "", nil, errors.New("the vault is locked")
	}
	commontest.Contains(t, "the error", "header Authorization: the vault is locked", fmt.Sprint(w.refusal()))
}
