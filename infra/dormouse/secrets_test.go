package dormouse

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

func TestSecretsAreSetListedAndRemoved(t *testing.T) {
	s := newShell(t)
	for _, step := range []struct {
		args, in string
		code     int
		want     string
	}{
		{"set github --principal ada", "", exitFailed, "the value for github has 0 bytes; it needs 1 to 16384"},
		{"set github --principal ada", "ghp_canary\n", exitDone, "github of ada, tenant default, is set."},
		{"set jira --principal bob --tenant acme", "jira_canary", exitDone, "jira of bob, tenant acme, is set."},
		{"list", "", exitDone, "github  default  ada "},
		{"list --principal bob --json", "", exitDone, `"name": "jira"`},
		{"list --tenant other --json", "", exitDone, "[]"},
		{"remove gitlab --principal ada", "", exitFailed, "ada of tenant default has no gitlab"},
		{"remove github --principal ada", "", exitDone, "github of ada"},
		{"list --principal ada --json", "", exitDone, "[]"},
	} {
		t.Run(step.args, func(t *testing.T) {
			s.in = step.in
			if got, code := s.run("secrets " + step.args + " --data $DATA"); code != step.code || !strings.Contains(got, step.want) || strings.Contains(got, "canary") {
				t.Errorf("secrets %s: exit code %d, %s; want %d, %s", step.args, code, got, step.code, step.want)
			}
		})
	}
}

// The command reads the list in pages. It says what expires, and what the third party has
// refused. The list includes sign-ins that are kept for exchanges, and they can be
// removed.
func TestSecretsListSaysWhatEndsAndWhatWasRefused(t *testing.T) {
	s := newShell(t)
	store, err := sqlitestore.Open(filepath.Join(s.data, local.StoreFile))
	commontest.OK(t, err)
	add := func(principal, provider, sealed string, until time.Time) {
		t.Helper()
		commontest.OK(t, store.UpstreamTokens().Create(t.Context(), storage.UpstreamToken{
			ID: storage.UpstreamTokenID("default", principal, provider), Tenant: "default", Principal: principal, Provider: provider, Sealed: sealed, Until: until, Created: noon(), Changed: noon(),
		}))
	}
	for n := range 230 {
		add(fmt.Sprint("user-", n), "notes", "sealed-canary", time.Time{})
	}
	end := noon().Add(time.Hour)
	add("ada", "crm", "sealed-canary", end)
	add("ada", "github", "", time.Time{})
	add("ada", "@sign-in", "sealed-canary", end)
	commontest.OK(t, store.Close())
	run := func(line string, want int) string {
		t.Helper()
		printed, code := s.run("secrets " + line + " --data $DATA")
		if code != want || strings.Contains(printed, "canary") {
			t.Errorf("secrets %s: exit code %d, %s", line, code, printed)
		}
		return printed
	}
	var all []secretLine
	if err := json.Unmarshal([]byte(run("list --json", exitDone)), &all); err != nil || len(all) != 233 {
		t.Errorf("%d lines, %v", len(all), err)
	}
	printed := run("list --principal ada", exitDone)
	for _, want := range []string{"crm +default +ada +2026-11-22 +2026-11-22 13:00:00", "github +default +ada +2026-11-22 +refused"} {
		if !regexp.MustCompile(want).MatchString(printed) {
			t.Errorf("the list has no line %q:\n%s", want, printed)
		}
	}
	run("remove --principal ada @sign-in", exitDone)
	run("remove --principal ada @sign-in", exitFailed)
	if printed := run("list --principal ada", exitDone); strings.Contains(printed, "@sign-in") {
		t.Error(printed)
	}
}
