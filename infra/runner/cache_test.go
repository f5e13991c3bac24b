package runner

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

func TestWhatIsKeptOfInstalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mb   string
		want int64
		ok   bool
	}{
		{"", 10 << 30, true},
		{"100", 100 << 20, true},
		{"0", 0, true},
		{"-1", 0, false},
		{"1GB", 0, false},
		{"9999999999999999", 0, false},
	} {
		want := provision.Keep{Age: 30 * 24 * time.Hour, Bytes: c.want}
		if got, err := newKeep(c.mb); (err == nil) != c.ok || c.ok && got != want {
			t.Errorf("%q: %+v, %v", c.mb, got, err)
		}
	}
}
