//go:build clients && matrix

package clients

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// This is the matrix: every client, in each of its modes, against stdio servers of each
// era behind Dormouse. Each cell has a server of its own that has never been started, so
// every client begins with a cold start.

// pageVariable is a variable. If it is set, the test writes the table into
// docs/clients.md.
const pageVariable = "DORMOUSE_MATRIX_PAGE"

// buildLimit bounds the build of the Rust client.
const buildLimit = 15 * time.Minute

// column is a hosted server.
type column struct {
	title   string
	command func(t *testing.T) (command string, args []string)
}

func columns() []column {
	eras := func(era string) func(*testing.T) (string, []string) {
		return func(t *testing.T) (string, []string) { return prepareEras(t), []string{era} }
	}
	return []column{
		{"legacy", func(t *testing.T) (string, []string) {
			return programtest.Tool(t, "node", programtest.NodeHelp), []string{everything(t), "stdio"}
		}},
		{"both eras", eras("dual")},
		{"2026-07-28 only", eras("modern")},
	}
}

// matrixRow is a client in one of its modes.
type matrixRow struct {
	client, mode string
	checks       []string
	command      func(t *testing.T) []string // without --url
	// run, if not nil, replaces the run of the command.
	run func(t *testing.T, url string) (passed int)
}

func matrixRows() []matrixRow {
	modern, few := modernChecks(), []string{"initialize", "list", "echo-unicode", "progress", "sampling", "elicitation", "roots", "close"}
	fewer := slices.DeleteFunc(slices.Clone(few), func(check string) bool { return check == "sampling" })
	ts := func(name string, flags ...string) func(*testing.T) []string {
		return func(t *testing.T) []string { return append(prepareTypeScript(t, name, streamable), flags...) }
	}
	py := func(version, program string, flags ...string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			return append(preparePython(t, "requirements-"+version+".txt", program), flags...)
		}
	}
	golang := func(flags ...string) func(*testing.T) []string {
		return func(t *testing.T) []string { return append(prepareGo(t), flags...) }
	}
	rust := func(mode string) func(*testing.T) []string {
		return func(t *testing.T) []string { return []string{prepareRust(t), "--mode", mode} }
	}
	return []matrixRow{
		{client: "ts-1.32.2", mode: "legacy", checks: allChecks(), command: ts("ts")},
		{client: "ts-2.4.0", mode: "legacy", checks: allChecks(), command: ts("ts2", "--mode", "legacy")},
		{client: "ts-2.4.0", mode: "auto", checks: modern, command: ts("ts2", "--mode", "auto")},
		{client: "ts-2.4.0", mode: "pin", checks: modern, command: ts("ts2", "--mode", "pin")},
		{client: "py-1.30.0", mode: "legacy", checks: allChecks(), command: py("1.30.0", "client.py")},
		{client: "py-2.3.0", mode: "legacy", checks: allChecks(), command: py("2.3.0", "client.py", "--mode", "legacy")},
		{client: "py-2.3.0", mode: "auto", checks: modern, command: py("2.3.0", "client.py", "--mode", "auto")},
		{client: "py-2.3.0", mode: "2026-07-28", checks: modern, command: py("2.3.0", "client.py", "--mode", "2026-07-28")},
		{client: "fastmcp-4.1.0", mode: "default", checks: few, command: py("fastmcp-4.1.0", "fastmcp_client.py")},
		{client: "go-1.8.0", mode: "default", checks: modern, command: golang("--era", "modern")},
		{client: "go-1.8.0", mode: "2025-11-25", checks: allChecks(), command: golang("--protocol", "2025-11-25")},
		{client: "rmcp-3.9.0", mode: "initialize", checks: fewer, command: rust("initialize")},
		{client: "rmcp-3.9.0", mode: "auto", checks: fewer, command: rust("auto")},
		{client: "go-1.8.0", mode: "through mcp-remote 0.15.1", checks: allChecks(), command: func(t *testing.T) []string {
			remote := filepath.Join(nodeModules(t, "mcp-remote"), "node_modules", "mcp-remote", "dist", "proxy.js")
			return append(prepareGo(t), "--protocol", "2025-11-25", "--through", strings.Join([]string{programtest.Tool(t, "node", programtest.NodeHelp), remote}, " "))
		}},
		{client: "inspector-2.12.0", mode: "--cli", checks: inspectorChecks(), run: inspect},
	}
}

// title returns the name of a client in the table.
func (r matrixRow) title() string {
	names := map[string]string{"ts": "TypeScript", "py": "Python", "go": "go-sdk"}
	name, version, _ := strings.Cut(r.client, "-")
	if full, ok := names[name]; ok {
		name = full
	}
	return name + " " + version
}

// slug names the server of a cell.
func slug(c column, r matrixRow) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(c.title+"-"+r.client+"-"+r.mode), "-"), "-")
}

func TestMatrix(t *testing.T) {
	rows := matrixRows()
	for _, r := range rows {
		if r.command != nil {
			r.command(t) // install everything before the time of a cell begins
		}
	}
	passed := make([][]int, len(rows))
	for i := range passed {
		passed[i] = make([]int, len(columns()))
	}
	var mu sync.Mutex
	t.Run("cells", func(t *testing.T) {
		for at, c := range columns() {
			t.Run(c.title, func(t *testing.T) {
				t.Parallel()
				urls := hostCells(t, c, rows)
				for i, r := range rows {
					t.Run(r.client+" "+r.mode, func(t *testing.T) {
						n := r.play(t, urls[slug(c, r)])
						mu.Lock()
						defer mu.Unlock()
						passed[i][at] = n
					})
				}
			})
		}
	})
	table := matrixTable(rows, passed)
	t.Logf("\n%s", table)
	if os.Getenv(pageVariable) != "" && !t.Failed() {
		writeTable(t, table)
	}
}

// hostCells starts a Dormouse with a server of its own for each row.
func hostCells(t *testing.T, c column, rows []matrixRow) map[string]string {
	t.Helper()
	command, args := c.command(t)
	servers := map[string]any{}
	for _, r := range rows {
		servers[slug(c, r)] = map[string]any{"command": command, "args": args, "x-dormouse": map[string]any{"idle_seconds": 5}}
	}
	urls := map[string]string{}
	for name, hosted := range programtest.Host(t, servers) {
		urls[name] = hosted.URL
	}
	return urls
}

// play runs the client of a row against a URL. It returns how many checks passed.
func (r matrixRow) play(t *testing.T, url string) (passed int) {
	if r.run != nil {
		return r.run(t, url)
	}
	run := newRun(t, r.client, streamable, append(r.command(t), "--url", url, "--transport", streamable))
	run.checks = r.checks
	run.start(t)
	outcomes := run.outcomes(t)
	for _, check := range r.checks {
		switch got, ok := outcomes[check]; {
		case !ok:
			t.Errorf("%s: the client ended without it", check)
		case !got.OK:
			t.Errorf("%s: after %d ms: %s", check, got.MS, got.Error)
		default:
			passed++
		}
	}
	return passed
}

func inspectorChecks() []string {
	return []string{"tools/list", "tools/call", "prompts/list", "resources/list"}
}

// inspect runs the inspector once for each check, because each of its runs connects anew.
func inspect(t *testing.T, url string) (passed int) {
	cli := filepath.Join(nodeModules(t, "inspector"), "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
	for _, check := range inspectorChecks() {
		args := []string{cli, "--cli", url, "--transport", "http", "--method", check}
		want := map[string]string{"tools/list": `"echo"`, "tools/call": "Echo: 🐭 hello", "prompts/list": "simple-prompt", "resources/list": "architecture.md"}[check]
		if check == "tools/call" {
			args = append(args, "--tool-name", "echo", "--tool-arg", "message=🐭 hello")
		}
		ctx, cancel := context.WithTimeout(t.Context(), runLimit)
		out, err := exec.CommandContext(ctx, programtest.Tool(t, "node", programtest.NodeHelp), args...).CombinedOutput()
		cancel()
		if err != nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("%s: %v: %.2000s", check, err, out)
			continue
		}
		passed++
	}
	return passed
}

func matrixTable(rows []matrixRow, passed [][]int) string {
	var b strings.Builder
	b.WriteString("| client | mode |")
	for _, c := range columns() {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns())) + "\n")
	for i, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |", r.title(), r.mode)
		for _, n := range passed[i] {
			fmt.Fprintf(&b, " %d of %d |", n, len(r.checks))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// writeTable puts the table between its markers.
func writeTable(t *testing.T, table string) {
	t.Helper()
	const begin, end = "<!-- matrix: written by make matrix -->\n", "<!-- /matrix -->\n"
	path := filepath.Join(programtest.Root(t), "docs", "clients.md")
	text := string(programtest.Read(t, path))
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table: %q and %q", path, begin, end)
	}
	programtest.Write(t, path, []byte(before+begin+table+end+after))
}

// prepareEras builds the server that can be of any era.
func prepareEras(t *testing.T) string {
	t.Helper()
	return programtest.Build(t, filepath.Join("clients", "eras"), ".", "./eras")
}

// prepareRust builds the Rust client, which takes minutes the first time.
func prepareRust(t *testing.T) string {
	t.Helper()
	target := filepath.Join(programtest.Root(t), ".tools", "clients", "rust")
	ctx, cancel := context.WithTimeout(t.Context(), buildLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, programtest.Tool(t, "cargo", "cargo is needed for the Rust client: https://rustup.rs"), "build", "--locked", "--quiet")
	cmd.Dir, cmd.Env = "rust", append(os.Environ(), "CARGO_TARGET_DIR="+target)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return filepath.Join(target, "debug", "rmcp-client")
}
