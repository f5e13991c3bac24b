//go:build walk

package stack_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/apigw"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// task is a task that the stack has started in the emulator. The emulator lists it, but starts no
// container for it.
type task struct {
	ARN        string
	Containers []container
	Overrides  []container // what the call of RunTask has changed; only Name and Environment are set
}

type container struct {
	Name, WorkingDirectory string
	EntryPoint, Command    []string
	Environment            []struct{ Name, Value string }
	DependsOn              []struct{ ContainerName, Condition string }
}

// inABox is a servers file with the program of w.image. Its box falls asleep at once.
const inABox = `{"mcpServers":{"stdio":{"command":"stdio","args":["-name","of the image"],"x-dormouse":{"idle_seconds":3}}}}`

// callsABox calls the server of inABox as a client. said is the output of the deployment, which
// has the client's command line. The test itself starts the containers of the tasks that the
// stack starts meanwhile.
func (w *walk) callsABox(said string) {
	w.t.Helper()
	w.types("make bin/dormouse")
	key := strings.TrimSpace(w.types(line(w.t, said, "bin/dormouse keys create me ")))
	args := strings.Split(w.types(strings.NewReplacer("SERVER", "stdio", "Bearer KEY", "Bearer "+key).Replace(line(w.t, said, "claude mcp add "))), "\n")
	type answer struct {
		text string
		err  error
	}
	called := make(chan answer, 1)
	go func() {
		text, err := w.echoes(args[5], args[7])
		called <- answer{text, err}
	}()
	started := map[string]bool{}
	var boxes []func() error
	for {
		select {
		case got := <-called:
			if got.err != nil || got.text != "asleep no more" || len(boxes) == 0 {
				w.t.Fatalf("the server says %q, %v, from %d boxes", got.text, got.err, len(boxes))
			}
			for _, ends := range boxes {
				commontest.CheckIn(w.t, "a box does not fall asleep", ends())
			}
			return
		default:
		}
		var tasks []task
		w.do(&tasks, "tasks")
		for _, one := range tasks {
			if !started[one.ARN] {
				started[one.ARN] = true
				boxes = append(boxes, w.starts(one))
			}
		}
	}
}

// echoes opens a session and calls its tool.
func (w *walk) echoes(url, header string) (string, error) {
	s, err := w.dial(url, header)
	if err != nil {
		return "", err
	}
	got, err := s.CallTool(w.t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "asleep no more"}})
	if err != nil {
		return "", err
	}
	text, ok := got.Content[0].(*mcp.TextContent)
	if !ok {
		return "", fmt.Errorf("the tool returns %+v", got.Content)
	}
	return text.Text, s.Close()
}

// starts starts the containers of a task as ECS does, with the programs and the environment of
// its definition, and returns what waits for the end of the last one. The image that the
// definition names is a root folder with the server's program; no image is pulled. It needs
// root, or sudo without a password.
func (w *walk) starts(one task) func() error {
	w.t.Helper()
	if len(one.Containers) != 2 || len(one.Containers[0].DependsOn) != 1 || one.Containers[0].DependsOn[0].ContainerName != one.Containers[1].Name || one.Containers[0].DependsOn[0].Condition != "SUCCESS" {
		w.t.Fatalf("a box is the containers %+v", one.Containers)
	}
	box, first := one.Containers[0], one.Containers[1]
	image := w.t.TempDir()
	if err := os.Chmod(image, 0o755); err != nil { //nolint:gosec // for the users in it
		w.t.Fatal(err)
	}
	build(w.t, filepath.Join(image, "usr/local/bin/stdio"), root("infra", "dormouse", "testdata", "stdio"))
	volume := filepath.Join(image, first.WorkingDirectory)
	for _, folder := range []string{volume, filepath.Join(image, "proc")} {
		if err := os.Mkdir(folder, 0o755); err != nil { //nolint:gosec // as above
			w.t.Fatal(err)
		}
	}
	fetch := exec.CommandContext(w.t.Context(), first.EntryPoint[0], append(first.EntryPoint[1:], first.Command...)...) //nolint:gosec // the command is the stack's own
	fetch.Dir, fetch.Env = volume, append(one.environment(first), "PATH="+os.Getenv("PATH"))
	if out, err := fetch.CombinedOutput(); err != nil {
		w.t.Fatalf("the first container: %v\n%s", err, out)
	}
	// The box must also trust the certificate of the gate, which stands in for AWS.
	trusted, err := os.ReadFile(w.authority)
	if err == nil {
		err = os.WriteFile(filepath.Join(volume, "roots.pem"), trusted, 0o644) //nolint:gosec // as above
	}
	commontest.OK(w.t, err)
	env := append(one.environment(box), "PATH=/usr/local/bin:/usr/bin:/bin", "HTTPS_PROXY="+w.gateway)
	// The image's user is that of the test, who can remove what the box leaves.
	enter := append(append([]string{"env", "-i"}, env...), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--root="+image, "--wd=/", "--mount-proc",
		fmt.Sprintf("--setgid=%d", os.Getgid()), fmt.Sprintf("--setuid=%d", os.Getuid()))
	if os.Getuid() != 0 {
		enter = append([]string{"sudo", "-n"}, enter...)
	}
	enter = append(append(enter, box.EntryPoint...), box.Command...)
	cmd := exec.CommandContext(w.t.Context(), enter[0], enter[1:]...) //nolint:gosec // the command is the stack's own
	var says bytes.Buffer
	cmd.Stdout, cmd.Stderr = &says, &says
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	commontest.OK(w.t, cmd.Start())
	return func() error {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w\n%s", err, &says)
		}
		return nil
	}
}

// environment returns what a container gets by the definition, and what it gets by the task.
func (one task) environment(of container) []string {
	var all []string
	for _, c := range append([]container{of}, one.Overrides...) {
		for _, v := range c.Environment {
			if c.Name == of.Name {
				all = append(all, v.Name+"="+v.Value)
			}
		}
	}
	return all
}

// relays returns the WebSocket API of the boxes, and what functions post to.
func (w *walk) relays() (api, connections http.Handler) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	relay := sockets.New(sockets.Config{
		Name: "relay", Stage: "v1", Limits: apigw.Limits(), Logger: log,
		Routes: apigw.SocketRoutes{APIID: "relay", Stage: "v1", Function: w.stack + "-relay", Invoker: whole{w.endpoint}, Log: log},
	})
	w.t.Cleanup(func() { _ = relay.Close(context.WithoutCancel(w.t.Context())) })
	return relay, apigw.Connections{"v1": relay}
}

// whole invokes functions in the emulator whose answer is not streamed.
type whole struct{ endpoint string }

func (e whole) Invoke(ctx context.Context, function string, payload []byte) (*lambda.Invocation, error) {
	answer, err := emulated(ctx, e.endpoint, function, payload)
	return &lambda.Invocation{Body: io.NopCloser(strings.NewReader(answer))}, err
}
