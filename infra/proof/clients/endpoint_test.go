//go:build clients

package clients

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
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
	node := programtest.Tool(t, "node", programtest.NodeHelp)
	hosted := programtest.Host(t, map[string]any{"everything": map[string]any{"command": node, "args": []string{everything(t), "stdio"}}})["everything"]
	return dormouseURLs(hosted.URL, hosted.SocketURL)
}

// startReference returns the URL of server-everything's own server for a transport, which is
// Streamable HTTP or HTTP+SSE.
func startReference(t *testing.T, transport string) string {
	t.Helper()
	shim, err := filepath.Abs(filepath.Join("everything", "loopback.cjs"))
	if err != nil {
		t.Fatal(err)
	}
	mode := map[string]string{streamable: "streamableHttp", sse: "sse"}[transport]
	line := programtest.Start(t, []string{"PORT=0"}, programtest.Tool(t, "node", programtest.NodeHelp), "--require", shim, everything(t), mode).Ready(t)
	var ready struct{ URL string }
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatal(err)
	}
	return ready.URL
}

// remoteEntry is a servers file's entry for a server of this machine that has a URL.
func remoteEntry(url string) map[string]any {
	return map[string]any{"url": url, "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}}
}
