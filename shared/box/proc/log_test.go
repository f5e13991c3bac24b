package proc

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
)

func TestLogHoldsNoSecretHoweverItIsWritten(t *testing.T) {
	const secret, key = "hunter22-and-more", "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----"
	hide := redact.New(map[string]string{"API_KEY": secret, "PRIVATE": key}, []string{"PRIVATE"})
	text := "before " + secret + " after\n" + key + "\n" + strings.Repeat("x", maxLogLine-7) + secret + strings.Repeat("y", 100) + "\n" +
		strings.Repeat(secret, 3000) + "\nthe end is " + secret[:9]
	for size := range 40 {
		var kept bytes.Buffer
		d := NewLog(struct {
			io.Writer
			io.Closer
		}{&kept, io.NopCloser(nil)}, hide)
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), 1+size*size*7)
			if _, err := d.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		d.Close("over")
		got := kept.String()
		for _, part := range []string{"hunter", "abcdefgh", "ijklmnop", "BEGIN KEY"} {
			if strings.Contains(got, part) {
				t.Fatalf("in pieces of %d bytes it says %q", 1+size*size*7, part)
			}
		}
		if !strings.HasPrefix(got, "before *** after\n***") || strings.Count(got, "x") < maxLogLine-7 {
			t.Fatalf("in pieces of %d bytes too much is hidden: %.80s", 1+size*size*7, got)
		}
	}
}
