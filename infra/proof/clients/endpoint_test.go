//go:build clients

package clients

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const (
	// urlVariable is the variable with the URL of an endpoint that is already running and
	// hosts server-everything, http://HOST/everything/mcp. socketVariable is the one with
	// its URL for WebSocket clients.
	urlVariable    = "DORMOUSE_TEST_URL"
	socketVariable = "DORMOUSE_TEST_SOCKET_URL"
)

// urls are the URLs of an endpoint, by transport.
type urls map[string]string

// dormouseTransports returns the transports over which Dormouse is tested.
func dormouseTransports() []string { return []string{streamable, sse, webSocket} }

// dormouseURLs returns the URLs of a server for clients of each transport.
func dormouseURLs(mcp, socket string) urls {
	return urls{streamable: mcp, sse: strings.TrimSuffix(mcp, "/mcp") + "/sse", webSocket: socket}
}

// startDormouse returns the URLs of a Dormouse that hosts the pinned server-everything
// over stdio. It uses the Dormouse at DORMOUSE_TEST_URL, or else starts one.
func startDormouse(t *testing.T) urls {
	t.Helper()
	if url := os.Getenv(urlVariable); url != "" {
		return dormouseURLs(url, os.Getenv(socketVariable))
	}
	hosted := programtest.Host(t, entries(t))["everything"]
	startOnce(t, hosted.URL)
	return dormouseURLs(hosted.URL, hosted.SocketURL)
}

// entries are the servers file's entries with the pinned server-everything over stdio.
func entries(t *testing.T) map[string]any {
	t.Helper()
	return map[string]any{"everything": map[string]any{"command": programtest.Tool(t, "node", programtest.NodeHelp), "args": []string{everything(t), "stdio"}}}
}

// startOnce makes the server at a URL known to its Dormouse. Until a server has started
// once, server/discover answers after 5 s without it, and a machine that has much to do
// takes longer to start it. TestColdStartDoesNotShowOnDiscover has that case.
func startOnce(t *testing.T, url string) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"start","version":"1"}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	commontest.OK(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	commontest.OK(t, err)
	defer func() { _ = resp.Body.Close() }()
	if answer, err := io.ReadAll(resp.Body); err != nil || !bytes.Contains(answer, []byte("serverInfo")) {
		t.Fatalf("initialize: HTTP %d %s, %v", resp.StatusCode, answer, err)
	}
}

// startReference returns the URL of server-everything's own server for a transport, which is
// Streamable HTTP or HTTP+SSE.
func startReference(t *testing.T, transport string) string {
	t.Helper()
	shim, err := filepath.Abs(filepath.Join("everything", "loopback.cjs"))
	commontest.OK(t, err)
	mode := map[string]string{streamable: "streamableHttp", sse: "sse"}[transport]
	line := programtest.Start(t, []string{"PORT=0"}, programtest.Tool(t, "node", programtest.NodeHelp), "--require", shim, everything(t), mode).Ready(t)
	var ready struct{ URL string }
	commontest.OK(t, json.Unmarshal(line, &ready))
	return ready.URL
}

// remoteEntry is a servers file's entry for a server of this machine that has a URL.
func remoteEntry(url string) map[string]any {
	return map[string]any{"url": url, "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}}
}
