package box

import (
	"strings"
	"testing"
)

func TestStderrKeepsTheEnd(t *testing.T) {
	for _, write := range []int{1, 7, 1000, maxStderr - 1, maxStderr, 3 * maxStderr} {
		var r ring
		var all strings.Builder
		for i := 0; all.Len() < 3*maxStderr; i++ {
			part := strings.Repeat(string(rune('a'+i%26)), write)
			all.WriteString(part)
			if n, err := r.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("Write says %d, %v", n, err)
			}
		}
		text, cut := r.text()
		if s := all.String(); text != s[len(s)-maxStderr:] || !cut {
			t.Errorf("in writes of %d bytes it keeps %d bytes that are not the end (cut: %v)", write, len(text), cut)
		}
	}
}

func TestTailIsCutBetweenCharacters(t *testing.T) {
	hide := newRedactor(nil, nil)
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"short", "a\nb\n", "a\nb"},
		{"as long as may be", strings.Repeat("é", maxTail), strings.Repeat("é", maxTail)},
		{"longer", "x" + strings.Repeat("😀", maxTail), strings.Repeat("😀", maxTail)},
		{"not UTF-8", "a\xff\xfeb", "a\uFFFDb"},
	} {
		var r ring
		_, _ = r.Write([]byte(c.in))
		if got := r.tail(hide); got != c.want {
			t.Errorf("%s: got %d bytes %.40q, want %d bytes", c.name, len(got), got, len(c.want))
		}
	}
}

func TestSecretsCutByTheRingAreHiddenToo(t *testing.T) {
	const secret = "sk-0123456789"
	hide := newRedactor(map[string]string{"API_KEY": secret}, nil)
	for end := range len(secret) {
		// So many secrets that the tail, which shows three characters for each, reaches
		// the first; the ring begins and ends in the middle of one, each time elsewhere.
		var r ring
		_, _ = r.Write([]byte(strings.Repeat(secret, 2*maxStderr/len(secret)) + secret[:end]))
		if got := strings.ReplaceAll(r.tail(hide), hidden, ""); len(got) > 2*(minPart-1) {
			t.Errorf("cut %d bytes into a secret the tail shows %q", end, got)
		}
	}
}
