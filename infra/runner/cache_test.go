package main

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/stage"
)

func TestWhatIsKeptOfInstalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		age, mb string
		want    stage.Keep
		ok      bool
	}{
		{"", "", stage.Keep{Age: 30 * 24 * time.Hour, Bytes: 10 << 30}, true},
		{"48h", "100", stage.Keep{Age: 48 * time.Hour, Bytes: 100 << 20}, true},
		{"0s", "0", stage.Keep{}, true},
		{"-1s", "", stage.Keep{}, false},
		{"30", "", stage.Keep{}, false},
		{"", "-1", stage.Keep{}, false},
		{"", "1GB", stage.Keep{}, false},
		{"", "9999999999999999", stage.Keep{}, false},
	} {
		if got, err := newKeep(c.age, c.mb); (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%q, %q: %+v, %v", c.age, c.mb, got, err)
		}
	}
}
