package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/quota"
	"github.com/dormouse-mcp/dormouse/shared/sqlitestore"
)

// dormouse quotas shows what each principal has used beside its caps, and includes caps
// that the operator has set.
func TestQuotasShowPrincipals(t *testing.T) {
	s := newShell(t)
	s.file("limits.json", `{"mcpServers":{"a":{"command":"a"}},"x-dormouse":{"limits":{"principal_month_gb":2}}}`)
	store, err := sqlitestore.Open(filepath.Join(s.data, local.StoreFile))
	if err != nil {
		t.Fatal(err)
	}
	l, err := quota.New(quota.Config{Store: store, Sections: quota.Sections{File: []byte(`{"principal_month_gb":2}`)}, Prices: meter.Published()})
	if err != nil {
		t.Fatal(err)
	}
	l.Charge("acme", "bob", "a", meter.Units{}, 1<<29)
	l.Charge("acme", "ada", "a", meter.Units{}, 2<<30) // over the cap, so it is written at once
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	const line = " --data $DATA --servers $DATA/limits.json"
	if printed, code := s.run("quotas set acme principal_month_usd=0.5" + line); code != exitDone {
		t.Error(printed)
	}
	printed, code := s.run("quotas --tenant acme" + line)
	for _, want := range []string{"acme    each principal       –             0.50   –      2", "acme    ada                  0.0000        0.50   2.000  2", "acme    bob                  0.0000        0.50   0.500  2"} {
		if code != exitDone || !strings.Contains(printed, want) {
			t.Errorf("there is no line %q in\n%s", want, printed)
		}
	}
	if printed, _ := s.run("quotas set acme principal_month_usd=off --server a" + line); !strings.Contains(printed, "each principal") {
		t.Error(printed)
	}
	if printed, code := s.run("quotas set acme principal_month_usd=1 --server a" + line); code == exitDone || !strings.Contains(printed, "put these under x-dormouse of the file") {
		t.Error(printed)
	}
}

// A tenant that nobody is of gets its limits, and the command says so. The tenant is in the
// list until its limits are those of the file again.
func TestQuotasOfATenantThatNobodyIsOf(t *testing.T) {
	s := newShell(t)
	s.file("limits.json", `{"mcpServers":{"a":{"command":"a"}},"x-dormouse":{"limits":{}}}`)
	const line = " --data $DATA --servers $DATA/limits.json"
	if printed, code := s.run("keys create ada --all-servers --tenant acme --data $DATA"); code != exitDone {
		t.Fatal(printed)
	}
	for tenant, says := range map[string]string{"acne": "Did you mean acme?", "nosuch": "dormouse quotas lists the tenants."} {
		printed, code := s.run("quotas set " + tenant + " month_usd=5" + line)
		if code != exitDone || !strings.Contains(printed, "No key and no session is of tenant "+tenant) || !strings.Contains(printed, says) {
			t.Error(printed)
		}
	}
	if printed, _ := s.run("quotas set acme month_usd=5" + line); strings.Contains(printed, "No key") {
		t.Error(printed)
	}
	if printed, _ := s.run("quotas" + line); !strings.Contains(printed, "\nnosuch") || !strings.Contains(printed, "\nacne") {
		t.Errorf("tenants with limits are not listed:\n%s", printed)
	}
	if printed, code := s.run("quotas set nosuch month_usd=file" + line); code != exitDone {
		t.Error(printed)
	}
	if printed, _ := s.run("quotas" + line); strings.Contains(printed, "nosuch") {
		t.Errorf("a tenant without limits is listed:\n%s", printed)
	}
	if printed, code := s.run("quotas set acme month_usd=5USD" + line); code == exitDone || !strings.Contains(printed, "month_usd cannot be a string; want a number") {
		t.Error(printed)
	}
}
