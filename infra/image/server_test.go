//go:build image || release

package image_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// asServer is the argument with which the test program is an MCP server on stdio. Its tool
// echo answers its text.
const asServer = "as-server"

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, asServer) {
		os.Exit(m.Run())
	}
	type arguments struct {
		Text string `json:"text"`
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "echo", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: a.Text}}}, nil, nil
	})
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// worksAlone copies a program alone into a folder with a servers file, where it hosts the
// file, without a home and without a PATH. It returns its version.
func worksAlone(t *testing.T, program string) (version string) {
	t.Helper()
	folder := t.TempDir()
	own, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "dormouse"), own, 0o700) //nolint:gosec // it is executed
	}
	commontest.OK(t, err)
	server, err := os.Executable() // TestMain answers as a server
	commontest.OK(t, err)
	file := fmt.Sprintf(`{"mcpServers": {"echo": {"command": %q, "args": [%q]}}}`, server, asServer)
	commontest.OK(t, os.WriteFile(filepath.Join(folder, "servers.json"), []byte(file), 0o600))
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), filepath.Join(folder, "dormouse"), args...)
		cmd.Dir, cmd.Env = folder, []string{"PATH=/nowhere"}
		return cmd
	}
	said, err := command("version").Output()
	commontest.Check(t, err)
	run := command("run", "--listen", "127.0.0.1:0", "--json")
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	events, err := run.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, run.Start())
	t.Cleanup(func() { _ = run.Wait() }) // the end of the test's context interrupts it
	if line, err := bufio.NewReader(events).ReadString('\n'); err != nil || !strings.Contains(line, `"kind":"ready"`) {
		t.Fatalf("the first event is %q, %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, events) }()
	if said, err := command("call", "echo", "echo", "text=hello").Output(); err != nil || strings.TrimSpace(string(said)) != "hello" {
		t.Errorf("dormouse call: %q, %v", said, err)
	}
	return string(said)
}
