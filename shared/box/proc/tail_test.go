package proc

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
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
		if got := r.Last(hide); got != c.want {
			t.Errorf("%s: got %d bytes %.40q, want %d bytes", c.name, len(got), got, len(c.want))
		}
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
		if r.Lately() != 0 || r.Since(0, hide) != "" {
			t.Error("an empty tail has something")
		}
		_, _ = r.Write([]byte(strings.Repeat("old ", maxKept)))
		before := r.Total()
		time.Sleep(2 * lately)
		if r.Lately() != before || r.Since(before, hide) != "" {
			t.Error("old output counts as new")
		}
		_, _ = r.Write([]byte("new "))
		time.Sleep(lately / 2)
		_, _ = r.Write([]byte("output"))
		for _, first := range []int64{before, r.Lately()} {
			if got := r.Since(first, hide); got != "new output" {
				t.Errorf("since %d it says %q", first, got)
			}
		}
		if got := r.Since(r.Total()+1, hide); got != "" {
			t.Errorf("after its end it says %q", got)
		}
		if got := r.Last(hide); !strings.HasSuffix(got, "old new output") || len(got) != MaxTail {
			t.Errorf("all of it is %d bytes", len(got))
		}
	})
}
