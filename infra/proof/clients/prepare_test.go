//go:build clients

package clients

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// prepareTypeScript installs the SDK that the folder name pins, and returns the command of
// a program for it. It copies the program and its files for this SDK next to it, because
// Node looks for packages beside the script.
func prepareTypeScript(t *testing.T, name, program string) []string {
	t.Helper()
	dir := nodeModules(t, name)
	programtest.Copy(t, filepath.Join(name, "sdk.mjs"), filepath.Join(dir, "sdk.mjs"))
	programtest.Copy(t, filepath.Join("ts", program), filepath.Join(dir, program))
	return []string{programtest.Tool(t, "node", programtest.NodeHelp), filepath.Join(dir, program)}
}

// prepareTypeScriptClient is prepareTypeScript for the program with all checks, over a
// transport.
func prepareTypeScriptClient(t *testing.T, name, transport string) []string {
	t.Helper()
	command := prepareTypeScript(t, name, "client.mjs")
	if transport == webSocket && nodeMajor(t, command[0]) < 22 {
		return []string{command[0], "--experimental-websocket", "--no-warnings", command[1]}
	}
	return command
}

// nodeMajor reads "v20.20.2".
func nodeMajor(t *testing.T, node string) int {
	t.Helper()
	version := string(programtest.Run(t, ".", programtest.NodeHelp, 0, node, "--version"))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		t.Fatalf("node calls its version %q", version)
	}
	return n
}

func preparePython(t *testing.T, requirements, program string) []string {
	t.Helper()
	python := programtest.Python(t, filepath.Join("clients", requirements), filepath.Join("py", requirements))
	return []string{python, filepath.Join("py", program)}
}

func prepareGo(t *testing.T) []string {
	t.Helper()
	return []string{programtest.Build(t, filepath.Join("clients", "gosdk"), ".", "./gosdk")}
}

// everything returns the script of the pinned reference server.
func everything(t *testing.T) string {
	t.Helper()
	return filepath.Join(nodeModules(t, "everything"),
		"node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
}

// nodeModules installs the packages that name/package-lock.json pins and returns the
// folder that contains node_modules.
func nodeModules(t *testing.T, name string) string {
	t.Helper()
	node := programtest.Tool(t, "node", programtest.NodeHelp)
	return programtest.NodeModules(t, filepath.Join("clients", name), name, programtest.Run(t, ".", programtest.NodeHelp, 0, node, "--version"))
}
