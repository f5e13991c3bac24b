//go:build clients

package clients

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// Bundles of the official packer are added by their name, asked for their configuration in a
// terminal, and called. What is secret is only in .env.
func TestBundlesOfTheOfficialPackerAreAddedAndCalled(t *testing.T) {
	node := programtest.Tool(t, "node", programtest.NodeHelp)
	packer := filepath.Join(nodeModules(t, "mcpb"), "node_modules", "@anthropic-ai", "mcpb", "dist", "cli", "cli.js")
	dormouse := filepath.Join(programtest.Root(t), "bin", "dormouse")
	dir, data := t.TempDir(), t.TempDir()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	for _, name := range []string{"one", "two"} {
		programtest.Empty(t, filepath.Join(dir, name))
	}
	build := filepath.Join(t.TempDir(), "binary")
	commontest.OK(t, os.CopyFS(build, os.DirFS(filepath.Join("mcpb", "binary"))))
	programtest.Empty(t, filepath.Join(build, "server"))
	programtest.Copy(t, programtest.Build(t, filepath.Join("clients", "mcpb-binary"), ".", "./mcpb/binary"), filepath.Join(build, "server", "given"))
	commontest.OK(t, os.Chmod(filepath.Join(build, "server", "given"), 0o755))
	bundles := []struct {
		from, name, said string
		answers          [][2]string // question and answer
		given            []string
	}{
		{"mcpb/node", "noted", "added noted 1.2.0: 1 tool", [][2]string{{"noted needs API key (From your account): ", "hunter2-node"}, {"noted needs Folders (What may be read), several with : between: ", "one:two"}}, []string{"hunter2-node", filepath.Join(dir, "one"), filepath.Join(dir, "two")}},
		{"mcpb/python", "snake", "added snake 0.1.0: 1 tool", [][2]string{{"snake needs Token (From your account): ", "hunter2-python"}}, []string{"hunter2-python", "--limit=10"}},
		{build, "gopher", "added gopher 2.0.0: 1 tool", [][2]string{{"gopher needs Password (Of your account): ", "hunter2-binary"}}, []string{"hunter2-binary", "false"}},
	}
	for _, b := range bundles {
		file := filepath.Join(dir, b.name+".mcpb")
		programtest.Run(t, ".", "does the packer take the manifest?", 0, node, packer, "pack", b.from, file)
		cmd := exec.CommandContext(t.Context(), dormouse, "add", b.name+".mcpb", "--data", data)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CI=")
		said := converse(t, cmd, b.answers)
		if !strings.Contains(said, b.said) || strings.Contains(said, "hunter2") {
			t.Fatalf("add %s says %s", b.name, said)
		}
	}
	if text := programtest.Read(t, filepath.Join(dir, "servers.json")); bytes.Contains(text, []byte("hunter2")) {
		t.Errorf("%s", text)
	}
	if info, err := os.Stat(filepath.Join(dir, ".env")); err != nil || info.Mode() != 0o600 {
		t.Error(info, err)
	}
	host := programtest.Start(t, nil, dormouse, "run", "--listen", "127.0.0.1:0", "--sockets", "127.0.0.1:0", "--json", "--data", data, "--servers", filepath.Join(dir, "servers.json"))
	for range 3 {
		host.Ready(t)
	}
	for _, b := range bundles {
		out := programtest.Run(t, dir, "does the server answer?", 0, dormouse, "call", b.name, "given", "--data", data)
		line, _, _ := strings.Cut(string(out), "\n")
		var got []string
		if err := json.Unmarshal([]byte(line), &got); err != nil || !slices.Equal(got, b.given) {
			t.Errorf("%s was given %s, %v", b.name, out, err)
		}
	}
}

// converse runs a program on a terminal, types an answer to each question, and returns what
// the terminal showed.
func converse(t *testing.T, cmd *exec.Cmd, answers [][2]string) (shown string) {
	t.Helper()
	terminal, err := pty.Start(cmd)
	commontest.OK(t, err)
	defer func() { _ = terminal.Close() }()
	commontest.OK(t, terminal.SetReadDeadline(time.Now().Add(runLimit)))
	for piece := make([]byte, 4096); ; {
		n, err := terminal.Read(piece)
		shown += string(piece[:n])
		if len(answers) > 0 && strings.HasSuffix(shown, answers[0][0]) {
			if _, err := terminal.WriteString(answers[0][1] + "\n"); err != nil {
				t.Fatal(err)
			}
			answers = answers[1:]
		}
		if err != nil { // the program has ended, and with it the terminal
			break
		}
	}
	if err := cmd.Wait(); err != nil || len(answers) > 0 {
		t.Fatalf("%v, and nobody asks %v: %s", err, answers, shown)
	}
	return shown
}
