//go:build e2e

package dormouse_test

import (
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

// Each command that takes --url works with a stack, or says in one line why it cannot and
// what to use instead. Each command that takes only --store works with the table. The
// functions are programs on DynamoDB, so their endpoint has only the data that it has on
// AWS. The test reads the commands from --help, and fails for one that has no row.
func TestE2EEveryCommandWorksWithAStackOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	endpoint := dynamoDB(t)
	location := dynamostore.Location{Table: "stack-" + storage.NewNonce(), Region: "us-east-1", Endpoint: endpoint}
	table := "dynamodb:" + location.Table + "?endpoint=" + endpoint
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start("--access", "keys", "--store", table)

	operator := m.keys("create", "ada", "--all-servers", "--role", "operator")
	m.keys("create", "bob", "--server", "one")
	carl := m.keys("create", "carl", "--server", "one")
	c := m.as(operator, "one")
	c.text("count", "")
	url := strings.TrimSuffix(m.urls["one"], "/one/mcp")

	// The functions of a machine read their servers file from the disk and take no push.
	// So push calls an API with the options of a stack, over the same table.
	store := dynamostore.New(location.Client(dynamostore.Keys{ID: "local", Secret: "local"}, nil), location.Table, dynamostore.Options{})
	stack := httptest.NewServer(api.New(api.Options{Info: api.Info{Place: api.PlaceStack}, Store: store, Pushed: true, Caller: api.Holders(apikey.NewKeys(store), nil)}))
	t.Cleanup(stack.Close)
	file := filepath.Join(t.TempDir(), "servers.json")
	write(t, file, `{"mcpServers":{"one":{"command":"a"}}}`)

	at := []string{"--url", url, "--key", operator}
	in := []string{"--store", table}
	type row struct {
		command, line string // the command, and its arguments
		where         []string
		want          string
		code          int
	}
	rows := []row{
		{"list", "", at, "one   awake", 0},
		{"tools", "one", at, "echo", 0},
		{"call", "one echo text=hello", at, "hello", 0},
		{"sessions", "", at, c.session[:12], 0},
		{"sessions list", "", at, c.session[:12], 0},
		{"sessions give", c.session[:12] + " bob --json", at, `"bob"`, 0},
		{"ps", "", at, "one     awake", 0},
		{"open", "", at, url + "/console/enter?ticket=", 0}, // of this machine; stack.URL has none
		{"open", "", []string{"--url", stack.URL, "--key", operator}, "has no console", 1},
		{"doctor", "one", at, "✓ first list", 0},
		{"connect", "claude-code one", at, url + "/one/mcp", 0},
		{"keys create", "eve --server one", at, "dm_", 0},
		{"keys list", "", at, "eve", 0},
		{"keys rotate", "bob", at, "is valid until", 0},
		{"keys revoke", carl, at, "of carl, tenant default, is revoked", 0},
		{"accept", "one", at, "are not held", 1},
		{"inspect", "gone", at, "gone", 1},
		{"stop", "one --now --json", at, "default/one", 0},
		{"end", c.session[:12] + " --json", at, c.session, 0},
		{"push", file, []string{"--url", stack.URL, "--key", operator}, "Version 1 of the servers file", 0},
		// A stack does not have this data. The answer says where it is.
		{"calls", "", at, "log groups in CloudWatch", 1},
		{"logs", "one", at, "aws logs tail", 1},
		{"bill", "", at, "log groups in CloudWatch", 1},
		{"reload", "", at, "dormouse push", 1},
		// These commands use the table itself, with the credentials of its owner.
		{"quotas show", "", in, "default", 0},
		{"quotas set", "default month_usd=5", in, "", 0},
		{"secrets set", "github --principal ada", in, "", 0},
		{"secrets list", "", in, "github", 0},
		{"secrets remove", "github --principal ada", in, "", 0},
		{"grants list", "--json", in, "[]", 0},
		{"grants revoke", "unknown", in, "there is no grant unknown", 1},
	}
	// These commands are about this machine alone.
	here := []string{
		"run", "add", "import", "prepare", "remove", "enable", "disable", "backup", "restore", "check", "image", "version", "completion", "upgrade",
		"env set", "stdio", "service install", "service status", "service logs", "service uninstall",
	}

	for _, r := range rows {
		out, code := operateWith(t, "value", []string{"DORMOUSE_SECRET=" + strings.Repeat("ab", 32)}, slices.Concat(strings.Fields(r.command), strings.Fields(r.line), r.where)...)
		if code != r.code || !strings.Contains(out, r.want) {
			t.Errorf("%s %s: exit code %d, want %d with %q: %s", r.command, r.line, code, r.code, r.want, out)
		}
		if r.code != 0 && strings.Count(strings.TrimSpace(out), "\n") > 0 {
			t.Errorf("%s says in more than a line why not: %s", r.command, out)
		}
	}
	help, _ := operate(t, "--help")
	found := regexp.MustCompile(`(?m)^  ([a-z]+(?: [a-z]+)?)(?: .*)?$`).FindAllStringSubmatch(help, -1)
	if len(found) < 30 {
		t.Fatalf("the program has the commands %q", found)
	}
	for _, f := range found {
		command := f[1]
		about := slices.Contains(here, command)
		flags, _ := operate(t, append(strings.Fields(command), "--help")...)
		remote := strings.Contains(flags, "--url=URL") && strings.Contains(flags, "--key=KEY") || !about && strings.Contains(flags, "--store=")
		tried := slices.ContainsFunc(rows, func(r row) bool { return r.command == command })
		switch {
		case about && remote:
			t.Errorf("%s takes --url, and the test says that it is about this machine alone", command)
		case !about && (!remote || !tried):
			t.Errorf("nobody has said what %s does with a stack: give it a row, or a place in the list of commands about this machine", command)
		}
	}
}
