package runner

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

func TestWhatIsKeptOfInstalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		age, mb string
		want    provision.Keep
		ok      bool
	}{
		{"", "", provision.Keep{Age: 30 * 24 * time.Hour, Bytes: 10 << 30}, true},
		{"48h", "100", provision.Keep{Age: 48 * time.Hour, Bytes: 100 << 20}, true},
		{"0s", "0", provision.Keep{}, true},
		{"-1s", "", provision.Keep{}, false},
		{"30", "", provision.Keep{}, false},
		{"", "-1", provision.Keep{}, false},
		{"", "1GB", provision.Keep{}, false},
		{"", "9999999999999999", provision.Keep{}, false},
	} {
		if got, err := newKeep(c.age, c.mb); (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%q, %q: %+v, %v", c.age, c.mb, got, err)
		}
	}
}
