package dormouse

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

var update = flag.Bool("update", false, "write what commands print into testdata/commands.txtar")

// noon is the time of every command in these tests.
func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// shell executes command lines on one data folder. It masks values that differ from run
// to run.
type shell struct {
	t    *testing.T
	data string
	mask []string // pairs, as strings.NewReplacer takes them
	ask  asker    // nil: no terminal
	in   string   // what commands read from stdin
}

func newShell(t *testing.T) *shell {
	t.Helper()
	s := &shell{t: t, data: t.TempDir()}
	s.mask = []string{s.data, "DATA", builtAs().line(), "dormouse VERSION"}
	return s
}

// run executes a command line and returns its whole output and its exit code. "$DATA"
// is the folder of the shell, and "$KEY" is the id of the newest key.
func (s *shell) run(line string) (printed string, code int) {
	s.t.Helper()
	args := strings.Fields(strings.NewReplacer("$DATA", s.data, "$KEY", s.key(), "$NOTHING", "").Replace(line))
	printed, code = printedBy(args, terminal{program: Program{Native: nativetest.Servers()}, in: strings.NewReader(s.in), now: noon, ask: s.ask})
	if made := regexp.MustCompile(`dm_([a-z2-7]{8})_[a-z2-7]{32}`).FindStringSubmatch(printed); made != nil {
		s.mask = append(s.mask, made[0], "dm_"+strings.Repeat("k", len(made[0])-3), made[1], "kkkkkkkk")
	}
	printed = strings.NewReplacer(s.mask...).Replace(printed)
	if !strings.HasPrefix(line, "keys") {
		return printed, code
	}
	printed = regexp.MustCompile(` \d\d:\d\d:\d\d\.`).ReplaceAllString(printed, " 00:00:00.")
	printed = regexp.MustCompile(`T\d\d:\d\d:\d\d\.\d+Z`).ReplaceAllString(printed, "T00:00:00Z")
	return regexp.MustCompile(`20\d\d-\d\d-\d\d`).ReplaceAllString(printed, "2000-01-02"), code
}

// printedBy executes a command and returns its whole output and its exit code.
func printedBy(args []string, t terminal) (printed string, code int) {
	var out, err bytes.Buffer
	t.out, t.err = &out, &err
	code = execute(args, &t)
	printed = out.String()
	if err.Len() > 0 {
		printed += "-- on stderr:\n" + err.String()
	}
	return printed, code
}

func (s *shell) key() string {
	if n := len(s.mask); n > 4 {
		return s.mask[n-2]
	}
	return ""
}

func (s *shell) file(name, text string) {
	s.t.Helper()
	writeFile(s.t, filepath.Join(s.data, name), text, 0o600)
}

// writeFile writes a file, and makes the folder that it is in.
func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	commontest.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	commontest.OK(t, os.WriteFile(path, []byte(text), mode))
}

// used gives the folder the contents of a used machine: a session, logs of two processes,
// and a bill.
func (s *shell) used() {
	s.t.Helper()
	store, err := sqlitestore.Open(filepath.Join(s.data, local.StoreFile))
	commontest.OK(s.t, err)
	defer func() { _ = store.Close() }()
	commontest.OK(s.t, store.Create(s.t.Context(), storage.Session{
		ID: "c3bjph2vld4rqqqqqqqqqqqqqqqqqqqq", Server: "one", Tenant: "default", State: storage.Ready, Version: "2025-11-25",
		Init:    json.RawMessage(`{"clientInfo":{"name":"claude-code","version":"1"}}`),
		Created: noon().Add(-time.Hour), Used: noon().Add(-time.Minute), Expires: noon().Add(100 * 365 * 24 * time.Hour),
	}))
	s.file("logs/one/c3bjph2vld4rqqqqqqqqqqqqqqqqqqqq.1.log", "first line\nsecond line\n")
	s.file("logs/two/shared.2.log.old", "older line\n")
	s.file("logs/two/shared.2.log", "newer line, without an end")
	used, err := json.Marshal(bill.Bill{Since: noon().Add(-time.Hour), Until: noon(), Shares: []api.Share{
		{Server: "one", Tenant: "default", Session: "c3bjph2vld4rqqqqqqqqqqqqqqqqqqqq", Units: meter.Units{Invocations: 1e6, Messages: 3}},
		{Server: "two", Tenant: "default", Units: meter.Units{VCPUSeconds: 60}},
		{Units: meter.Units{Invocations: 5}},
	}})
	commontest.OK(s.t, err)
	s.file(bill.File, string(used))
	s.file("broken.json", "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\" \"args\"}\n  }\n}\n")
	s.file("mixed.json", "{\n  // Two of five are wrong.\n  \"mcpServers\": {\n    \"good\": {\"command\": \"a\"},\n    \"unset\": {\"command\": \"a\", \"env\": {\"K\": \"${NOT_SET}\"}},\n    \"remote\": {\"url\": \"https://example.com/mcp\"}, \"off\": {\"command\": \"a\", \"disabled\": true},\n    \"two\": {\"command\": 1, \"args\": 2, \"startup\": 3}\n  }\n}\n")
	s.file("list.json", "{\n  \"mcpServers\": []\n}\n")
	s.file("servers.json", `{"mcpServers":{"buggy":{"command":"a"},"everything":{"command":"b"}}}`)
}

// TestCommandsPrint compares the whole output of commands, on a used folder, with
// testdata/commands.txtar. The name of a file there is a command line and its exit code.
func TestCommandsPrint(t *testing.T) {
	const golden = "testdata/commands.txtar"
	archive, err := txtar.ParseFile(golden)
	commontest.OK(t, err)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir()) // no command finds the machine of another test
	s := newShell(t)
	s.used()
	for n, f := range archive.Files {
		line, wants, _ := strings.Cut(f.Name, " => ")
		printed, code := s.run(line)
		archive.Files[n] = txtar.File{Name: fmt.Sprintf("%s => %d", line, code), Data: []byte(printed)}
		if d := cmp.Diff(string(f.Data), printed); !*update && (d != "" || wants != fmt.Sprint(code)) {
			t.Errorf("dormouse %s: exit code %d, want %s (-want +got):\n%s", line, code, wants, d)
		}
	}
	if *update {
		commontest.OK(t, os.WriteFile(golden, txtar.Format(archive), 0o600))
	}
}
