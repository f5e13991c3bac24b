//go:build image

package runner

import (
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// told is what a server in an image says of its start.
type told struct {
	Args        []string
	Env         []string
	Folder      string
	User, Group int
}

// compiled builds a program as the images have it: for no libraries.
func compiled(t *testing.T, folder string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "aws", "-ldflags", "-s -w", "-o", file, folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	commontest.OK(t, err)
	return text
}

// The image has nothing of Dormouse, and not all that a program expects: no shell, no
// certificates, no folder for temporary files, and a user without a name. The test starts the
// container as ECS does: with the image's user, environment and folder, and with the program
// that the first container has put into the volume. It needs root.
func TestTheRunnerStartsInAnyImage(t *testing.T) {
	root := t.TempDir()
	commontest.OK(t, os.Chmod(root, 0o755)) // Go's folders are of their user only
	relay := newRelayStandIn(t, nil)
	relay.calls <- "call"
	secure := httptest.NewTLSServer(relay.Config.Handler)
	t.Cleanup(secure.Close)
	for path, text := range map[string][]byte{
		"app/server":         compiled(t, "./testdata/told"),
		"dormouse/runner":    compiled(t, "./cmd"),
		"dormouse/roots.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}),
	} {
		commontest.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		commontest.OK(t, os.WriteFile(filepath.Join(root, path), text, 0o755))
	}
	cache := filepath.Join(root, "dormouse/cache")
	commontest.OK(t, os.Mkdir(cache, 0o777))
	commontest.OK(t, os.Chmod(cache, 0o777|os.ModeSticky))
	commontest.OK(t, os.Mkdir(filepath.Join(root, "proc"), 0o755))

	image := frame.Image{Entrypoint: []string{"/app/server"}, Cmd: []string{"stdio"}, Env: []string{"PATH=/app", "MODE=production", "HOME=/app", "SSL_CERT_FILE=/etc/none.crt"}}
	config, err := json.Marshal(image)
	commontest.OK(t, err)
	server := serversfile.Server{
		Name: "told", Command: "docker", Args: []string{"run", "-i", "--rm", "-e", "TOKEN", "-e", "MODE=test", "example.com/server"},
		Env: map[string]string{"TOKEN": "ssm:/stack/token"}, Idle: time.Second, StartupTimeout: time.Minute, ToolTimeout: time.Minute, AnswerTimeout: time.Minute,
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--root="+root, "--wd=/app", "--mount-proc",
		"--setgid=65532", "--setuid=65532", "/dormouse/runner")
	cmd.Env = append(slices.Clone(image.Env),
		"HOSTNAME=ip-10-64-0-1.ec2.internal", "ECS_CONTAINER_METADATA_URI_V4=http://169.254.170.2/v4/x", // as ECS sets them
		"DORMOUSE_CACHE=/dormouse/cache", frame.EnvRoots+"=/dormouse/roots.pem", frame.EnvImage+"="+string(config),
		frame.EnvBox+"=t/told", frame.EnvGeneration+"=1", frame.EnvToken+"=token", frame.EnvPass+"=pass", "DORMOUSE_BOX_TASK=ecs/x",
		frame.EnvRelayURL+"=wss"+strings.TrimPrefix(secure.URL, "https"), "DORMOUSE_ENV_TOKEN=value of the secret", "DORMOUSE_SERVER="+server.Marshal(),
	)
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	commontest.OK(t, cmd.Start())
	var answer struct{ Result told }
	commontest.OK(t, json.Unmarshal([]byte(within(t, relay.results).raw), &answer))
	commontest.Check(t, cmd.Wait()) // it falls asleep
	got := answer.Result
	got.Env = slices.DeleteFunc(got.Env, func(pair string) bool { return strings.HasPrefix(pair, "DORMOUSE_PROCESS=") })
	slices.Sort(got.Env)
	commontest.Same(t, told{Args: []string{"/app/server", "stdio"}, Folder: "/app", User: 65532, Group: 65532, Env: []string{
		"HOME=/app", "LANG=C.UTF-8", "MODE=test", "PATH=/app", "SSL_CERT_FILE=/etc/none.crt", "TMPDIR=/tmp", "TOKEN=value of the secret",
	}}, got)
}
