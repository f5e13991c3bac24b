//go:build clients && matrix

package clients

import (
	"bytes"
	"cmp"
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

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// This is the matrix: every client, in each of its modes, against stdio servers of each
// era behind Dormouse. Each cell has a server of its own that has never been started, so
// every client begins with a cold start. In one column the clients are at the address of
// all servers. In two more the server is a remote one, which is up: another program, and
// another Dormouse.

// Variables of the test.
const (
	pageVariable    = "DORMOUSE_MATRIX_PAGE"    // if it is set, the test writes the table into results.md
	columnsVariable = "DORMOUSE_MATRIX_COLUMNS" // titles of the columns to run, with commas; the table keeps the others
)

// column is a hosted server. entries returns its entries in the servers file, by name: one
// for each row.
type column struct {
	title   string
	one     bool // clients are at the address of a group of two servers
	entries func(t *testing.T, names []string) map[string]any
}

func columns() []column {
	all := func(entry func(t *testing.T) map[string]any) func(*testing.T, []string) map[string]any {
		return func(t *testing.T, names []string) map[string]any {
			made, servers := entry(t), map[string]any{}
			for _, name := range names {
				servers[name] = made
			}
			return servers
		}
	}
	program := func(command string, args ...string) map[string]any {
		return map[string]any{"command": command, "args": args, "x-dormouse": map[string]any{"idle_seconds": 5}}
	}
	eras := func(era string) func(*testing.T, []string) map[string]any {
		return all(func(t *testing.T) map[string]any { return program(prepareEras(t), era) })
	}
	legacy := all(func(t *testing.T) map[string]any {
		return program(programtest.Tool(t, "node", programtest.NodeHelp), everything(t), "stdio")
	})
	return []column{
		{title: "legacy", entries: legacy},
		{title: "both eras", entries: eras("dual")},
		{title: "2026-07-28 only", entries: eras("modern")},
		{title: "`/mcp`", one: true, entries: legacy},
		{title: "remote", entries: all(func(t *testing.T) map[string]any { return remoteEntry(startReference(t, streamable)) })},
		{title: "remote Dormouse", entries: func(t *testing.T, names []string) map[string]any {
			servers := map[string]any{}
			for name, hosted := range programtest.Host(t, legacy(t, names)) {
				servers[name] = remoteEntry(hosted.URL)
			}
			return servers
		}},
	}
}

// wanted reports whether a column is to run.
func (c column) wanted() bool {
	only := os.Getenv(columnsVariable)
	return only == "" || slices.Contains(strings.Split(only, ","), strings.Trim(c.title, "`"))
}

// place is where the client of a cell finds its server. one is the name of the server if
// the URL has several servers, and "" otherwise.
type place struct{ url, one string }

// matrixRow is a client in one of its modes.
type matrixRow struct {
	client, mode string
	checks       []string
	command      func(t *testing.T) []string // without --url
	// run, if not nil, replaces the run of the command.
	run func(t *testing.T, at place) (passed int)
}

func matrixRows() []matrixRow {
	modern, few := modernChecks(), []string{"initialize", "list", "echo-unicode", "progress", "sampling", "elicitation", "roots", "close"}
	fewer := slices.DeleteFunc(slices.Clone(few), func(check string) bool { return check == "sampling" })
	ts := func(name string, flags ...string) func(*testing.T) []string {
		return func(t *testing.T) []string { return append(prepareTypeScriptClient(t, name, streamable), flags...) }
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
		{client: "go-1.8.0", mode: "through dormouse stdio", checks: modern, command: func(t *testing.T) []string {
			return append(prepareGo(t), "--era", "modern", "--through", filepath.Join(programtest.Root(t), "bin", "dormouse")+" stdio")
		}},
		{client: "go-1.8.0", mode: "through dormouse stdio, 2025-11-25", checks: allChecks(), command: func(t *testing.T) []string {
			return append(prepareGo(t), "--protocol", "2025-11-25", "--through", filepath.Join(programtest.Root(t), "bin", "dormouse")+" stdio")
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

// slug names the server of a cell. It is short at the address of a group, where the names
// of tools begin with the server's name. Dormouse would abbreviate a long one.
func slug(c column, r matrixRow) string {
	if c.one {
		c.title, r.mode = "one", strings.NewReplacer("through mcp-remote 0.15.1", "through", "through dormouse stdio", "stdio").Replace(r.mode)
	}
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
	ran := 0
	t.Run("cells", func(t *testing.T) {
		for at, c := range columns() {
			if !c.wanted() {
				continue
			}
			ran++
			t.Run(c.title, func(t *testing.T) {
				t.Parallel()
				places := hostCells(t, c, rows)
				for i, r := range rows {
					t.Run(r.client+" "+r.mode, func(t *testing.T) {
						n := r.play(t, places[i])
						mu.Lock()
						defer mu.Unlock()
						passed[i][at] = n
					})
				}
			})
		}
	})
	if ran == 0 {
		t.Fatalf("%s names no column", columnsVariable)
	}
	table := matrixTable(rows, passed, string(programtest.Read(t, clientsPage(t))))
	t.Logf("\n%s", table)
	if os.Getenv(pageVariable) != "" && !t.Failed() {
		writeTable(t, tableBegin, tableEnd, table)
	}
}

// hostCells starts a Dormouse with one server for each row. For a column at the address
// of a group, each row's group has a second server.
func hostCells(t *testing.T, c column, rows []matrixRow) []place {
	t.Helper()
	groups := map[string]any{}
	var names []string
	for i, r := range rows {
		names = append(names, slug(c, r))
		groups[fmt.Sprint(i)] = map[string]any{"servers": []string{slug(c, r), "beside"}}
	}
	servers, settings := c.entries(t, names), map[string]any{}
	if c.one {
		servers["beside"] = map[string]any{"command": prepareEras(t), "args": []string{"dual"}}
		settings["groups"] = groups
	}
	hosted := programtest.HostWith(t, servers, settings)
	places := make([]place, len(rows))
	for i, name := range names {
		if places[i].url = hosted[name].URL; c.one {
			places[i] = place{strings.Replace(hosted[name].URL, "/"+name+"/mcp", fmt.Sprintf("/g/%d/mcp", i), 1), name}
		}
	}
	return places
}

// play runs the client of a row. It returns how many checks passed.
func (r matrixRow) play(t *testing.T, at place) (passed int) {
	if r.run != nil {
		return r.run(t, at)
	}
	command := append(r.command(t), "--url", at.url, "--transport", streamable)
	if at.one != "" {
		command = append(command, "--one", at.one)
	}
	run := newRun(t, r.client, streamable, command)
	run.checks = r.checks
	run.start(t)
	outcomes := run.outcomes(t)
	for _, check := range r.checks {
		switch got, ok := outcomes[check]; {
		case !ok:
			t.Errorf("%s: the client ended without it", check)
		case got.OK:
			passed++
		default:
			t.Errorf("%s: after %d ms: %s", check, got.MS, got.Error)
		}
	}
	return passed
}

func inspectorChecks() []string {
	return []string{"tools/list", "tools/call", "prompts/list", "resources/list"}
}

// inspect runs the inspector once for each check, because each of its runs connects anew.
func inspect(t *testing.T, at place) (passed int) {
	cli := filepath.Join(nodeModules(t, "inspector"), "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
	prefix := ""
	if at.one != "" {
		prefix = at.one + "__"
	}
	for _, check := range inspectorChecks() {
		args := []string{cli, "--cli", at.url, "--transport", "http", "--method", check}
		want := map[string]string{"tools/list": `"` + prefix + `echo"`, "tools/call": "Echo: 🐭 hello", "prompts/list": prefix + "simple-prompt", "resources/list": "architecture.md"}[check]
		if check == "tools/call" {
			args = append(args, "--tool-name", prefix+"echo", "--tool-arg", "message=🐭 hello")
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

// matrixTable returns the table. A column that did not run keeps the cells that it has in
// page.
func matrixTable(rows []matrixRow, passed [][]int, page string) string {
	old := oldCells(page)
	var b strings.Builder
	b.WriteString("| client | mode |")
	for _, c := range columns() {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns())) + "\n")
	for i, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |", r.title(), r.mode)
		for at, c := range columns() {
			cell := fmt.Sprintf("%d of %d", passed[i][at], len(r.checks))
			if !c.wanted() {
				cell = cmp.Or(old[[3]string{r.title(), r.mode, c.title}], "not run")
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The table stands between these lines of the page.
const tableBegin, tableEnd = "<!-- matrix: written by make matrix -->\n", "<!-- /matrix -->\n"

// oldCells returns the cells of the table in a page, by client, mode and title of the column.
func oldCells(page string) map[[3]string]string {
	_, rest, _ := strings.Cut(page, tableBegin)
	table, _, _ := strings.Cut(rest, tableEnd)
	cells := map[[3]string]string{}
	var titles []string
	for line := range strings.Lines(table) {
		words := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range words {
			words[i] = strings.TrimSpace(words[i])
		}
		if titles == nil {
			titles = words
		}
		for i := 2; i < min(len(words), len(titles)); i++ {
			cells[[3]string{words[0], words[1], titles[i]}] = words[i]
		}
	}
	return cells
}

func clientsPage(t *testing.T) string {
	t.Helper()
	return filepath.Join(programtest.Root(t), "infra", "proof", "clients", "results.md")
}

// writeTable puts a table between its markers.
func writeTable(t *testing.T, begin, end, table string) {
	t.Helper()
	path := clientsPage(t)
	before, rest, ok := strings.Cut(string(programtest.Read(t, path)), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table: %q and %q", path, begin, end)
	}
	programtest.Write(t, path, []byte(before+begin+table+end+after))
}

// prepareRust builds the Rust client, which takes minutes the first time.
func prepareRust(t *testing.T) string {
	t.Helper()
	return buildRust(t, "rust", "rust", "rmcp-client")
}

// The control tells a broken client from a broken endpoint.
func TestReferenceServerPassesEveryClient(t *testing.T) {
	for _, transport := range []string{streamable, sse} {
		t.Run(transport, func(t *testing.T) {
			runClients(t, transport, startReference(t, transport))
		})
	}
}
