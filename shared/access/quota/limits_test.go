package quota_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestRatesAreRead(t *testing.T) {
	for text, want := range map[string]quota.Rate{
		"60/m":          {60, time.Minute, 10},
		"60/m burst 20": {60, time.Minute, 20},
		"5/h":           {5, time.Hour, 1},
		"1000000000/d":  {1000000000, 24 * time.Hour, 115740},
		"off":           {},
	} {
		got, err := quota.ParseRate(text)
		commontest.CheckIn(t, text, err)
		commontest.EqualIn(t, text, want, got)
	}
	for _, text := range []string{"", "60", "/m", "60/x", "0/m", "-1/m", "1.5/m", "60/m burst 0", "60/m burst 1 2", "10000000000/d", "1/d burst 1000"} {
		if got, err := quota.ParseRate(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestLimitsOfAServersFile(t *testing.T) {
	l, on, err := quota.Read([]byte(`{"principal": "60/m", "boxes": 3, "month_usd": 20.5, "concurrent": null}`))
	if err != nil || !on || l.Boxes != 3 || l.MonthUSD != 20.5 || l.Principal.N != 60 || l.Concurrent != 0 {
		t.Errorf("%+v, %v, %v", l, on, err)
	}
	for _, file := range []string{
		`{"principle": "60/m"}`, `{"principal": 60}`, `{"concurrent": 1000}`, `{"month_usd": -1}`, `{"boxes": 1.5}`, `{"month_usd": 1e300}`, `{"boxes": "three"}`, `{"principal": "60/m burst 5 or more"}`, `[]`,
	} {
		if l, _, err := quota.Read([]byte(file)); err == nil {
			t.Errorf("%s is read as %+v", file, l)
		}
	}
}
