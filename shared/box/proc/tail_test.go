package proc

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestStderrKeepsTheEnd(t *testing.T) {
	for _, write := range []int{1, 7, 1000, maxKept - 1, maxKept, 3 * maxKept} {
		var r Tail
		var all strings.Builder
		for i := 0; all.Len() < 3*maxKept; i++ {
			part := strings.Repeat(string(rune('a'+i%26)), write)
			all.WriteString(part)
			if n, err := r.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("Write says %d, %v", n, err)
			}
		}
		text, cut := r.Text(0)
		if s := all.String(); text != s[len(s)-maxKept:] || !cut {
			t.Errorf("in writes of %d bytes it keeps %d bytes that are not the end (cut: %v)", write, len(text), cut)
		}
	}
}

func TestTailIsCutBetweenCharacters(t *testing.T) {
	hide := redact.New(nil, nil)
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"short", "a\nb\n", "a\nb"},
		{"as long as may be", strings.Repeat("é", MaxTail), strings.Repeat("é", MaxTail)},
		{"longer", "x" + strings.Repeat("😀", MaxTail), strings.Repeat("😀", MaxTail)},
		{"not UTF-8", "a\xff\xfeb", "a\uFFFDb"},
	} {
		var r Tail
		_, _ = r.Write([]byte(c.in))
		commontest.EqualIn(t, c.name, c.want, r.Last(hide))
	}
}

func TestSecretsCutByTheRingAreHiddenToo(t *testing.T) {
	const secret = "sk-0123456789"
	hide := redact.New(map[string]string{"API_KEY": secret}, nil)
	for end := range len(secret) {
		// The secrets fill the tail, which shows three characters for each. The kept
		// output begins and ends in the middle of a secret, at another byte each time.
		var r Tail
		_, _ = r.Write([]byte(strings.Repeat(secret, 2*maxKept/len(secret)) + secret[:end]))
		if got := strings.ReplaceAll(r.Last(hide), redact.Hidden, ""); len(got) > 4 {
			t.Errorf("cut %d bytes into a secret the tail shows %q", end, got)
		}
	}
}

func TestTailSinceAnEarlierTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hide := redact.New(nil, nil)
		var r Tail
		commontest.EqualIn(t, "an empty tail has something", 0, r.Lately())
		commontest.EqualIn(t, "an empty tail has something", "", r.Since(0, hide))
		_, _ = r.Write([]byte(strings.Repeat("old ", maxKept)))
		before := r.Total()
		time.Sleep(2 * lately)
		commontest.EqualIn(t, "old output counts as new", before, r.Lately())
		commontest.EqualIn(t, "old output counts as new", "", r.Since(before, hide))
		_, _ = r.Write([]byte("new "))
		time.Sleep(lately / 2)
		_, _ = r.Write([]byte("output"))
		for _, first := range []int64{before, r.Lately()} {
			commontest.Equal(t, "new output", r.Since(first, hide))
		}
		commontest.EqualIn(t, "after its end it says", "", r.Since(r.Total()+1, hide))
		if got := r.Last(hide); !strings.HasSuffix(got, "old new output") || len(got) != MaxTail {
			t.Errorf("all of it is %d bytes", len(got))
		}
	})
}
