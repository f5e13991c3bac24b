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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// unpacked is an image whose layers are in a folder, and its configuration.
type unpacked struct {
	file   string // path of the server's program; it has nothing else
	user   int
	folder string // WORKDIR
	config frame.Image
}

// told is what a server in an image says of its start.
type told struct {
	Args        []string
	Env         []string
	Folder      string
	User, Group int
}

// compiled builds a program as the images have it: for no libraries.
func compiled(t *testing.T, folder string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "aws", "-ldflags", "-s -w", "-o", file, folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// start starts the container as ECS does: with the image's user, environment and folder, and
// with the program that the first container has put into the volume. It gives the box a call,
// and returns its result.
func (i unpacked) start(t *testing.T, runner, program string, server serversfile.Server) told {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil { // Go's folders are of their user only
		t.Fatal(err)
	}
	copyTo := func(file, path string) {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, path), text, 0o755)
		}
		commontest.OK(t, err)
	}
	copyTo(program, i.file)
	relay := newRelayStandIn(t, nil)
	relay.calls <- "call"
	secure := httptest.NewTLSServer(relay.Config.Handler)
	t.Cleanup(secure.Close)
	// The volume, as the script of the first container leaves it.
	copyTo(runner, "dormouse/runner")
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	cache := filepath.Join(root, "dormouse/cache")
	for _, err := range []error{
		os.WriteFile(filepath.Join(root, "dormouse/roots.pem"), roots, 0o644), os.Mkdir(cache, 0o777), os.Chmod(cache, 0o777|os.ModeSticky), os.Mkdir(filepath.Join(root, "proc"), 0o755),
	} {
		commontest.OK(t, err)
	}
	config, err := json.Marshal(i.config)
	commontest.OK(t, err)
	server.Name, server.Idle, server.StartupTimeout, server.ToolTimeout, server.AnswerTimeout = "told", time.Second, time.Minute, time.Minute, time.Minute
	user := strconv.Itoa(i.user)
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--root="+root, "--wd="+i.folder, "--mount-proc",
		"--setgid="+user, "--setuid="+user, "/dormouse/runner")
	cmd.Env = append(slices.Clone(i.config.Env),
		"HOSTNAME=ip-10-64-0-1.ec2.internal", "ECS_CONTAINER_METADATA_URI_V4=http://169.254.170.2/v4/x", // as ECS sets them
		"DORMOUSE_CACHE=/dormouse/cache", frame.EnvRoots+"=/dormouse/roots.pem", frame.EnvImage+"="+string(config),
		frame.EnvBox+"=t/told", frame.EnvGeneration+"=1", frame.EnvToken+"=token", frame.EnvPass+"=pass", "DORMOUSE_BOX_TASK=ecs/x",
		frame.EnvRelayURL+"=wss"+strings.TrimPrefix(secure.URL, "https"), "DORMOUSE_ENV_TOKEN=value of the secret", "DORMOUSE_SERVER="+server.Marshal(),
	)
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	commontest.OK(t, cmd.Start())
	var answer struct {
		Result told
		Error  any
	}
	text := within(t, relay.results).raw
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Error != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if err := cmd.Wait(); err != nil { // it falls asleep
		t.Error(err)
	}
	return answer.Result
}

// Images have nothing of Dormouse, and most have not all that a program expects: no shell, no
// certificates, no folder for temporary files, and a user without a name. It needs root.
func TestTheRunnerStartsInAnyImage(t *testing.T) {
	runner, program := compiled(t, "./cmd"), compiled(t, "./testdata/told")
	secret := map[string]string{"TOKEN": "ssm:/stack/token"}
	docker := func(args ...string) serversfile.Server {
		return serversfile.Server{Command: "docker", Args: append([]string{"run", "-i", "--rm", "-e", "TOKEN"}, args...), Env: secret}
	}
	for name, test := range map[string]struct {
		image  unpacked
		server serversfile.Server
		want   told
	}{
		"distroless": {
			unpacked{"/server", 65532, "/", frame.Image{Entrypoint: []string{"/server"}, Cmd: []string{"stdio"}, Env: []string{"PATH=/usr/bin", "SSL_CERT_FILE=/etc/none.crt"}}},
			docker("example.com/server"),
			told{Args: []string{"/server", "stdio"}, Folder: "/", User: 65532, Group: 65532, Env: []string{
				"HOME=/tmp", "LANG=C.UTF-8", "PATH=/usr/bin", "SSL_CERT_FILE=/etc/none.crt", "TMPDIR=/tmp", "TOKEN=value of the secret",
			}},
		},
		"a user and a folder of its own": {
			unpacked{"/app/bin/server", 1000, "/app", frame.Image{Entrypoint: []string{"/not/this"}, Env: []string{"PATH=/app/bin", "HOME=/app", "MODE=production", "LANG=C"}}},
			docker("-w", "/app", "--entrypoint", "bin/server", "-e", "MODE=test", "example.com/server", "--read-only"),
			told{Args: []string{"bin/server", "--read-only"}, Folder: "/app", User: 1000, Group: 1000, Env: []string{
				"HOME=/app", "LANG=C", "MODE=test", "PATH=/app/bin", "TMPDIR=/tmp", "TOKEN=value of the secret",
			}},
		},
		"a command in the image": {
			unpacked{"/app/server", 1000, "/app", frame.Image{Entrypoint: []string{"/not/this"}, Env: []string{"PATH=/app", "MODE=production"}}},
			serversfile.Server{Command: "server", Args: []string{"x"}, Env: secret, Box: serversfile.Box{Image: "example.com/server"}},
			told{Args: []string{"server", "x"}, Folder: "/app", User: 1000, Group: 1000, Env: []string{
				"HOME=/tmp", "LANG=C.UTF-8", "MODE=production", "PATH=/app", "TMPDIR=/tmp", "TOKEN=value of the secret",
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.image.start(t, runner, program, test.server)
			got.Env = slices.DeleteFunc(got.Env, func(pair string) bool { return strings.HasPrefix(pair, "DORMOUSE_PROCESS=") })
			slices.Sort(got.Env)
			commontest.Same(t, test.want, got)
		})
	}
}
