package dormouse

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/certs"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// The SDK only says that the transport has rejected a request.
func TestCallSaysWhyTheEndpointRefuses(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	var body atomic.Value
	server := mcp.NewServer(&mcp.Implementation{Name: "one", Version: "1"}, nil)
	serve := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status.Load() == 0 {
			serve.ServeHTTP(w, r)
			return
		}
		if status.Load() < 0 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, body.Load().(string))
	}))
	defer at.Close()
	s, err := (&client{base: at.URL}).connect(t.Context(), "one", "")
	commontest.OK(t, err)
	defer func() { _ = s.Close() }()
	for _, test := range []struct {
		status     int64
		body, want string
	}{
		{503, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"server \"one\" is not served: it is off"}}`, `server "one" is not served: it is off`},
		{502, "<html>", "/one/mcp answers 502 Bad Gateway: is it a dormouse of this version?"}, // of a reverse proxy
	} {
		body.Store(test.body)
		status.Store(test.status)
		if _, err := (&callCommand{Server: "one", Tool: "echo"}).find(t.Context(), s); err == nil || !strings.HasPrefix(err.Error(), "one echo: ") || !strings.HasSuffix(err.Error(), test.want) || strings.Contains(err.Error(), "rejected") {
			t.Errorf("the list before the call says %v, want %s", err, test.want)
		}
		_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"})
		if err = (&callCommand{}).failed(err); err == nil || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("the call says %v, want %s", err, test.want)
		}
	}
	status.Store(-1)
	_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"})
	if err = (&callCommand{}).failed(err); !strings.HasSuffix(err.Error(), "EOF; the call may have been executed") {
		t.Errorf("the call over a connection that broke says %v", err)
	}
}

// A call that runs already is waited for, with the same key.
func TestCallOnceWaitsForTheCallThatHasItsKey(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "one", Version: "1"}, nil)
	var keys []any
	server.AddTool(&mcp.Tool{Name: "pay", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if keys = append(keys, r.Params.Meta[wire.MetaIdempotencyKey]); len(keys) < 3 {
			return nil, &jsonrpc.Error{Code: int64(wire.CodeInvalidParams), Message: "it runs", Data: []byte(`{"type":"` + sessions.KeyInUse + `"}`)}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "paid"}}}, nil
	})
	at := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	defer at.Close()
	to := &client{base: at.URL}
	s, err := to.connect(t.Context(), "one", "")
	commontest.OK(t, err)
	defer func() { _ = s.Close() }()
	result, err := to.callTool(t.Context(), s, "pay", "k", map[string]any{}, nil)
	if err != nil || result.Content[0].(*mcp.TextContent).Text != "paid" || !slices.Equal(keys, []any{"k", "k", "k"}) {
		t.Errorf("got %v, %v after the keys %v", result, err, keys)
	}
}

// The SDK tries the protocol before when the newest fails, which would start the server again.
func TestCallStartsAServerThatDoesNotStartOnce(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"process_start: exited with code 7","data":{"phase":"process_start"}}}`, wire.Lookup(body, "id"))
	}))
	defer at.Close()
	if _, err := (&client{base: at.URL}).connect(t.Context(), "one", ""); err == nil || !strings.HasSuffix(err.Error(), "exited with code 7") || asked.Load() != 1 {
		t.Errorf("it was asked %d times, %v", asked.Load(), err)
	}
}

// No authority of the system has signed the certificate. The control socket names it.
func TestCallTrustsTheCertificateOfItsOwnMachine(t *testing.T) {
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	own := other.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	commontest.OK(t, err)
	s := newShell(t)
	s.file("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})))
	s.file("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	s.file("servers.json", `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}}}}`)
	defer s.up(func(cfg *local.Config) {
		cfg.TLS = certs.Settings{Cert: filepath.Join(s.data, "cert.pem"), Key: filepath.Join(s.data, "key.pem")}
	})()
	for line, want := range map[string]string{
		"call counter add by=3 --data $DATA":               "3",
		"doctor --data $DATA --servers $DATA/servers.json": "✓ certificate   until 2084-01-29 16:00:00; clients need its authority",
		"call counter add by=3 --url " + other.URL:         "certificate signed by unknown authority",
	} {
		t.Run(line, func(t *testing.T) {
			if printed, _ := s.run(line); !strings.Contains(printed, want) {
				t.Errorf("%s: %s, want %s", line, printed, want)
			}
		})
	}
	for name, certificate := range map[string][]byte{"its own": own.Certificate[0], "another": []byte("another")} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, other.URL, nil)
		commontest.OK(t, err)
		res, err := trusting(other.URL, certificate).RoundTrip(r)
		if err == nil {
			_ = res.Body.Close()
		}
		commontest.EqualIn(t, fmt.Sprintf("%s: %v", name, err), name == "its own", err == nil)
	}
}
