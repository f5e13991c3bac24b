package dormouse

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// dormouse quotas shows what a tenant has used beside its limits, and includes limits that
// the operator has set.
func TestQuotasShowUseBesideLimits(t *testing.T) {
	s := newShell(t)
	s.file("limits.json", `{"mcpServers":{"a":{"command":"a"}},"x-dormouse":{"limits":{"month_usd":1,"boxes":3}}}`)
	store, err := sqlitestore.Open(filepath.Join(s.data, local.StoreFile))
	commontest.OK(t, err)
	l, err := quota.New(quota.Config{Store: store, Limits: []byte(`{"month_usd":1}`), Prices: meter.Published()})
	commontest.OK(t, err)
	l.Charge("acme", meter.Units{Requests: 1e6})
	commontest.OK(t, store.Close())
	const line = " --data $DATA --servers $DATA/limits.json"
	if printed, code := s.run("quotas set acme month_usd=0.5 principal=60/m concurrent=4" + line); code != exitDone {
		t.Error(printed)
	}
	printed, code := s.run("quotas --tenant acme" + line)
	fields := strings.Fields(printed[strings.LastIndex(printed, "\nacme")+1:])
	if code != exitDone || len(fields) < 8 || fields[1] == "0.0000" || strings.Join(fields[2:], " ") != "0.50 60/m burst 10 4 3" {
		t.Errorf("%q in\n%s", fields, printed)
	}
	if printed, code := s.run("quotas set acme day=5" + line); code == exitDone || !strings.Contains(printed, `there is no limit "day"`) {
		t.Error(printed)
	}
}
