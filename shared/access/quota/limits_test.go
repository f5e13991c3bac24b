package quota_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestRatesAreRead(t *testing.T) {
	for text, want := range map[string]quota.Rate{
		"60/m":             {60, time.Minute, 10},
		"60/m burst 20":    {60, time.Minute, 20},
		" 1/s  burst  3 ":  {1, time.Second, 3},
		"5/h":              {5, time.Hour, 1},
		"1000000000/d":     {1000000000, 24 * time.Hour, 115740},
		"off":              {},
		"1000000000/s":     {1000000000, time.Second, 10000000000},
		"10/d burst 10":    {10, 24 * time.Hour, 10},
		"100/s burst 1000": {100, time.Second, 1000},
	} {
		got, err := quota.ParseRate(text)
		commontest.CheckIn(t, text, err)
		commontest.EqualIn(t, text, want, got)
		if again, err := quota.ParseRate(got.String()); err != nil && got.Burst <= 1e9 || err == nil && again != got {
			t.Errorf("%q is written as %q: %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "60", "60/", "/m", "60/x", "0/m", "-1/m", "+1/m", "1.5/m", "60/m burst", "60/m burst 0", "60/m 20", "60/m burst 1 2", "1e3/m", "10000000000/d", "60 / m", "1/d burst 1000"} {
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
	for file, says := range map[string]string{
		`{"principle": "60/m"}`:                 `there is no limit "principle"; the limits are principal, concurrent, boxes, month_usd`,
		`{"day": 5}`:                            `there is no limit "day"`,
		`{"principal": 60}`:                     `"60/m"`,
		`{"concurrent": 1000}`:                  "at most 256",
		`{"month_usd": -1}`:                     "month_usd",
		`{"boxes": 1.5}`:                        "boxes",
		`{"month_usd": 1e300}`:                  "month_usd",
		`{"month_usd": "5USD"}`:                 "month_usd cannot be a string; want a number, such as 20",
		`{"boxes": "three"}`:                    "boxes cannot be a string; want a whole number, such as 5000",
		`{"principal": "60/m burst 5 or more"}`: "is not a rate",
		`[]`:                                    "want a JSON object",
	} {
		if _, _, err := quota.Read([]byte(file)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Set accepts the limits that it has stored, and does not change them.
func FuzzSet(f *testing.F) {
	for _, seed := range []string{
		`{"principal": "60/m burst 20"}`, `{"boxes": null, "month_usd": 1e-6}`, `{"principal": "file"}`, `{`, `null`,
	} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		store := storagetest.NewMemory()
		for _, change := range []string{first, second} {
			r, err := quota.Set(t.Context(), store, "t", []byte(change))
			if err != nil {
				continue
			}
			if !json.Valid(r.Own) {
				t.Fatalf("%q", r.Own)
			}
			again, err := quota.Set(t.Context(), store, "t", r.Own)
			if err != nil || string(again.Own) != string(r.Own) {
				t.Fatalf("%s becomes %s, %v", r.Own, again.Own, err)
			}
		}
	})
}
