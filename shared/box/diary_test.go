package box

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// page is what a diary is written to.
type page struct {
	mu     sync.Mutex
	text   bytes.Buffer
	closed bool
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *page) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

func (p *page) read() (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String(), p.closed
}

func TestDiaryTellsTheLifeOfAProcess(t *testing.T) {
	t.Parallel()
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Env["API_KEY"] = "hunter22"
		s.Stderr = func(session string) io.WriteCloser {
			if session != "s" {
				t.Errorf("session %q", session)
			}
			return kept
		}
	})
	r.failure(r.call("1", "die", "0"))
	r.state(t, Exited)
	got, closed := kept.read()
	line := `--- \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z `
	want := regexp.MustCompile(`^` + line + `process \d+ of session s started\nout of cheese\n` + line + `process \d+ exited with code 3\n$`)
	if !want.MatchString(got) || !closed {
		t.Errorf("closed %v, it says:\n%s", closed, got)
	}
}

func TestDiaryTellsWhyNothingWasStarted(t *testing.T) {
	t.Parallel()
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Command, s.Stderr = "/no/such/program", func(string) io.WriteCloser { return kept }
	})
	r.failure(r.call("1", "pid", "0"))
	r.state(t, Exited)
	if got, closed := kept.read(); !closed || !strings.Contains(got, "/no/such/program") {
		t.Errorf("closed %v, it says:\n%s", closed, got)
	}
}

// B24, L-6.
func TestDiaryHoldsNoSecretHoweverItIsWritten(t *testing.T) {
	const secret, key = "hunter22-and-more", "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----"
	hide := newRedactor(map[string]string{"API_KEY": secret, "PRIVATE": key}, []string{"PRIVATE"})
	text := "before " + secret + " after\n" + key + "\n" + strings.Repeat("x", maxDiaryLine-7) + secret + strings.Repeat("y", 100) + "\n" +
		strings.Repeat(secret, 3000) + "\nthe end is " + secret[:9]
	for size := range 40 {
		kept := &page{}
		d := &diary{to: kept, hide: hide}
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), 1+size*size*7)
			if _, err := d.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		d.close("over")
		got, _ := kept.read()
		for _, part := range []string{"hunter", "abcdefgh", "ijklmnop", "BEGIN KEY"} {
			if strings.Contains(got, part) {
				t.Fatalf("in pieces of %d bytes it says %q", 1+size*size*7, part)
			}
		}
		if !strings.HasPrefix(got, "before *** after\n***") || strings.Count(got, "x") < maxDiaryLine-7 {
			t.Fatalf("in pieces of %d bytes too much is hidden: %.80s", 1+size*size*7, got)
		}
	}
}
