package quota_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/quota"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
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
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
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

func TestSettingsOfAServersFile(t *testing.T) {
	s, on, err := quota.Read(quota.Sections{
		File:    []byte(`{"principal": "60/m", "boxes": 3, "day": 5000, "month_usd": 20.5, "concurrent": null}`),
		Servers: map[string][]byte{"files": []byte(`{"tools": {"write_*": "5/m"}, "weights": {"big": 10}, "server": "1000/m"}`)},
	})
	if err != nil || !on || s.Boxes != 3 || s.MonthUSD != 20.5 || s.Servers["files"].Tools["write_*"].N != 5 {
		t.Errorf("%+v, %v, %v", s, on, err)
	}
	for file, says := range map[string]string{
		`{"principle": "60/m"}`:              `there is no limit "principle"; the limits are principal, tenant, server, `,
		`{"principal": 60}`:                  `"60/m"`,
		`{"server": "60/m"}`:                 "under x-dormouse of a server",
		`{"concurrent": 1000}`:               "at most 256",
		`{"month_usd": -1}`:                  "month_usd",
		`{"servers": {}}`:                    "under its own x-dormouse",
		`{"day": 1.5}`:                       "day",
		`{"weights": {"a": 1}, "boxes": 2}`:  "under x-dormouse of a server",
		`{"month_gb": 1e300}`:                "month_gb",
		`{"principal_month_usd": -1}`:        "principal_month_usd",
		`{"principal_month_gb": "1"}`:        "principal_month_gb cannot be a string; want a number, such as 20",
		`{"month_usd": "5USD"}`:              "month_usd cannot be a string; want a number, such as 20",
		`{"boxes": "three"}`:                 "boxes cannot be a string; want a whole number, such as 5000",
		`{"tools": 5}`:                       "tools cannot be a number; want a JSON object",
		`{"tenant": "60/m burst 5 or more"}`: "is not a rate",
	} {
		if _, _, err := quota.Read(quota.Sections{File: []byte(file)}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", file, err)
		}
	}
	for file, says := range map[string]string{
		`{"boxes": 1}`:            "under x-dormouse of the file",
		`{"tools": {"": "1/s"}}`:  "not a name of tools",
		`{"tools": {"[": "1/s"}}`: "not a name of tools",
		`{"weights": {"a": -1}}`:  "weights",
		`[]`:                      "cannot",
	} {
		_, _, err := quota.Read(quota.Sections{Servers: map[string][]byte{"files": []byte(file)}})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, seed := range []string{"60/m", "60/m burst 20", "off", "1000000000/s", "0/d", "٣/m", "9/h burst 9"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := quota.ParseRate(text)
		if err != nil || r.IsZero() {
			return
		}
		if r.N < 1 || r.Burst < 1 || r.Per <= 0 {
			t.Fatalf("%q: %+v", text, r)
		}
	})
}

// Set accepts the limits that it has stored, and does not change them.
func FuzzSet(f *testing.F) {
	for _, seed := range []string{
		`{"principal": "60/m burst 20", "servers": {"a": {"tools": {"x*": "1/s"}, "weights": {"x": 2}}}}`,
		`{"day": null, "month_usd": 1e-6}`, `{"servers": {"a": {"day": "file"}}}`, `{"principal": "file"}`, `{"servers": null}`, `{"servers": {"a": null}}`, `{`, `null`,
	} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		store := sessiontest.NewMemory()
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
