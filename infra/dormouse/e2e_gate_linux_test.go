//go:build e2e

package dormouse_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// folderOf makes a folder for a user, where other users can enter.
func (m *machine) folderOf(prefix string, uid int) string {
	m.t.Helper()
	path, err := os.MkdirTemp(stdioFolder, prefix)
	if err == nil {
		err = os.Chmod(path, 0o755)
	}
	if err == nil {
		err = os.Chown(path, uid, -1)
	}
	commontest.OK(m.t, err)
	return path
}

// asUser makes a machine that runs as another user, who has no rights. For a user who is not
// root it is the same machine.
func (m *machine) asUser(uid int) *machine {
	m.t.Helper()
	if os.Getuid() != 0 || uid == 0 {
		m.ownCache()
		return m
	}
	m.data, m.tmp = m.folderOf("data-", uid), m.folderOf("tmp-", uid)
	text := read(m.t, m.servers)
	m.servers = m.folderOf("etc-", uid) + "/servers.json"
	write(m.t, m.servers, text)
	if err := os.Chmod(m.servers, 0o644); err != nil { //nolint:gosec // the user reads it
		m.t.Fatal(err)
	}
	m.env = append(m.env, "HOME="+m.tmp, "DORMOUSE_CACHE="+m.folderOf("cache-", uid))
	m.prepare = func(cmd *exec.Cmd) {
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return m
}

// Dormouse's own endpoints are no way out of a sandbox with a network. TestEscapeRoom
// holds for the unix sockets.
func TestE2EBoxesReachNoListenerOfDormouse(t *testing.T) {
	t.Parallel()
	uids := []int{os.Getuid()}
	if uids[0] == 0 {
		uids = append(uids, 65534)
	}
	for _, uid := range uids {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			t.Parallel()
			notes := (&machine{t: t}).folderOf("notes-", uid)
			m := rogues(t, map[string]map[string]any{
				"basic": {"profile": "network_basic"}, "extended": {"profile": "network_extended"}, "readonly": {"read_only_rootfs": true},
				"limits": {"memory_mb": 512}, "offline": {"profile": "default"}, "strict": {"profile": "offline_readonly"},
				"folder": {"profile": "network_basic", "host_path": notes, "host_path_mode": "rw"}, "free": {},
			}).asUser(uid)
			m.start(sleepy()...)
			address := strings.TrimPrefix(strings.Split(m.urls["free"], "/free")[0], "http://")
			socket := strings.Split(strings.TrimPrefix(m.ws["free"], "ws://"), "/")[0]
			head := func(line string) string { return line + " HTTP/1.1\r\nHost: localhost\r\n" }
			doors := map[string][2]string{
				"endpoint":  {address, head("POST /free/mcp") + "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: " + fmt.Sprint(len(initialize)) + "\r\n\r\n" + initialize},
				"console":   {address, head("GET /console/") + "\r\n"},
				"metrics":   {address, head("GET /metrics") + "\r\n"},
				"registry":  {address, head("GET /registry/v0/servers") + "\r\n"},
				"operators": {address, head("GET /api/v1/sessions") + "\r\n"},
				"health":    {address, head("GET /healthz") + "\r\n"},
				"socket":    {socket, head("GET /local?server=free") + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: mcp\r\n\r\n"},
			}
			for _, name := range []string{"basic", "extended", "readonly", "limits", "offline", "strict", "folder", "free"} {
				c := m.session(name)
				want := "HTTP/1.1 403 Forbidden"
				if name == "offline" || name == "strict" {
					want = "address family not supported"
				}
				for door, d := range doors {
					commontest.Contains(t, name+" asks the "+door, want, c.text("ask", fmt.Sprintf(`{"path":%q,"send":%q}`, d[0], d[1])))
				}
			}
			// A program can pass its connection on while it is looked for, and lose its parents.
			for range 3 {
				c := m.session("basic")
				if got := c.text("ask", fmt.Sprintf(`{"path":%q,"hops":60}`, address)); !strings.Contains(got, "403 Forbidden") && !strings.Contains(got, "deadline") {
					t.Errorf("orphans get: %s", got)
				}
			}
			// This test is no box, and goes on to be served.
			commontest.EqualIn(t, "a caller outside of boxes", http.StatusOK, web(t, http.DefaultClient, http.MethodGet, "http://"+address+"/healthz", "", nil).status)

			m.ours(`{"access": {"boxes": true}}`)
			m.eventually(idle*5, "the file opens the endpoint to boxes", func() bool {
				d := doors["health"]
				return strings.Contains(m.session("basic").text("ask", fmt.Sprintf(`{"path":%q,"send":%q}`, d[0], d[1])), "200 OK")
			})
		})
	}
}
