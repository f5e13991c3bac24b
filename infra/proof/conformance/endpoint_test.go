//go:build conformance

package conformance

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// readyLimit bounds the time from the start of a server until it serves.
const readyLimit = time.Minute

// server is an entry of the servers file.
type server struct {
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Hosting map[string]string `json:"x-dormouse,omitempty"`
}

// nativeServer returns an entry for a server of servers/native.
func nativeServer(name string) server { return server{Hosting: map[string]string{"native": name}} }

// startDormouse hosts servers, with the functions of servers/native, and returns their
// URLs. All servers are also at the address that plainGroup returns.
func startDormouse(t *testing.T, servers map[string]server, flags ...string) map[string]string {
	t.Helper()
	own := programtest.Own(t, filepath.Join("conformance", "native"), ".", "./servers/native")
	entries := map[string]any{}
	for name, s := range servers {
		entries[name] = s
	}
	urls := map[string]string{}
	for name, hosted := range own.OnEmulator(t).Host(t, entries, map[string]any{"groups": map[string]any{"plain": map[string]any{"names": "plain"}}}, flags...) {
		urls[name] = hosted.URL
	}
	return urls
}

// plainGroup returns the URL of a group without prefixes that has all servers of a Dormouse, by
// the URL of one of them. The suite drops the query of /mcp?names=plain in some requests.
func plainGroup(server, url string) string {
	return strings.TrimSuffix(url, "/"+server+"/mcp") + "/g/plain/mcp"
}

// startRemotes hosts servers that have a URL already, and returns their URLs.
func startRemotes(t *testing.T, far map[string]string) map[string]string {
	t.Helper()
	entries := map[string]any{}
	for name, url := range far {
		entries[name] = map[string]any{"url": url, "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}}
	}
	urls := map[string]string{}
	for name, hosted := range programtest.Host(t, entries) {
		urls[name] = hosted.URL
	}
	return urls
}

// startDirectly starts an everything-server's own HTTP server and returns its URL.
func startDirectly(t *testing.T, binary string, args ...string) string {
	t.Helper()
	address := commontest.FreeAddress(t)
	startAt(t, address, binary, args...)
	return "http://" + address + "/"
}

// startAt starts an everything-server's own HTTP server at an address.
func startAt(t *testing.T, address, binary string, args ...string) *programtest.Process {
	t.Helper()
	p := programtest.Start(t, nil, append([]string{binary, "-http", address}, args...)...)
	awaitListening(t, p, address)
	return p
}

// awaitListening returns when a process listens at an address. Such a process prints
// nothing when it is ready, so awaitListening tries to connect.
func awaitListening(t *testing.T, p *programtest.Process, address string) {
	t.Helper()
	for deadline := time.Now().Add(readyLimit); ; {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close() // nothing was said on it
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server at %s was not ready within %s: %v", address, readyLimit, err)
		}
		select {
		case <-p.Exited():
			t.Fatalf("the server at %s ended before it was ready", address)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
