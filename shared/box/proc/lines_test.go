package proc

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// readLines reads all lines. It returns a line over the limit as "<n bytes>".
func readLines(t *testing.T, r io.Reader, limit int) []string {
	t.Helper()
	lines := NewLineReader(r, limit, nil)
	var out []string
	for {
		line, err := lines.Next()
		var long *TooLong
		switch {
		case errors.As(err, &long):
			out = append(out, "<"+strings.Repeat("x", long.Bytes)+">")
		case err == nil:
			out = append(out, string(line))
		case errors.Is(err, io.EOF):
			if rest, _ := lines.Rest(); len(rest) > 0 {
				out = append(out, string(rest))
			}
			return out
		default:
			t.Fatal(err)
		}
	}
}

func TestLinesLongerThanAnyBufferAreWhole(t *testing.T) {
	long := strings.Repeat("x", 100<<10) // two buffers
	got := readLines(t, strings.NewReader(long+long+"\r\n"+long), 1<<20)
	if len(got) != 2 || got[0] != long+long || got[1] != long {
		t.Errorf("%d lines, not the two that went in", len(got))
	}
}

func TestNumberOfALineThatIsLeftOut(t *testing.T) {
	fill := strings.Repeat("x", 1000)
	for _, c := range []struct{ line, want string }{
		{`{"jsonrpc":"2.0","id":7,"result":"` + fill + `"}`, "7"},
		{`{"result":"` + fill + `","jsonrpc":"2.0", "id": 12 }`, "12"},
		{"\uFEFF" + `{"jsonrpc":"2.0","id":"7","result":"` + fill + `"}`, `"7"`},
		{`{"result":"` + fill + `","jsonrpc":"2.0","id":null}`, ""},
		{`{"result":"` + fill + `,\"id\":3}"}`, ""},
	} {
		long := &TooLong{}
		for part := range slices.Chunk([]byte(c.line), 7) {
			long.add(part)
		}
		if got, ok := long.Answers(); ok != (c.want != "") || ok && string(got) != c.want {
			t.Errorf("%.60s…%s is the answer to %q (%v), want %q", c.line, c.line[len(c.line)-20:], got, ok, c.want)
		}
		commontest.Equal(t, len(c.line), long.Bytes)
	}
}

func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "\n\n", "a", "a\r\nb\r\n", "a\rb\r\r\n", "\r\r\n\n", "é\n😀\r\n漢", strings.Repeat("long ", 30) + "\nshort", "{\"id\":1}\n{"} {
		f.Add([]byte(s), byte(16))
		f.Add([]byte(s), byte(len(s)))
	}
	f.Fuzz(func(t *testing.T, in []byte, limit byte) {
		var want []string
		rest := in
		for len(rest) > 0 {
			line, after, found := bytes.Cut(rest, []byte("\n"))
			size := len(line)
			if found {
				size++
			}
			if size > int(limit) {
				want = append(want, "<"+strings.Repeat("x", size)+">")
			} else {
				want = append(want, string(bytes.TrimSuffix(line, []byte("\r"))))
			}
			rest = after
		}
		for _, r := range []io.Reader{bytes.NewReader(in), iotest.OneByteReader(bytes.NewReader(in)), iotest.DataErrReader(bytes.NewReader(in))} {
			commontest.SameIn(t, "lines", want, readLines(t, r, int(limit)))
		}
	})
}

func TestQueueIsBoundedByWhatIsNotWritten(t *testing.T) {
	q := NewQueue(10)
	if !q.Push([]byte("12345")) || !q.Push([]byte("67890")) || q.Push([]byte("1")) {
		t.Fatal("the queue takes not what fits")
	}
	r, w := io.Pipe()
	done := make(chan error)
	go func() { done <- q.WriteLines(w) }()
	got := make([]byte, 6)
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "12345\n" {
		t.Fatalf("wrote %q (%v)", got, err)
	}
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "67890\n" {
		t.Fatalf("wrote %q (%v)", got, err)
	}
	commontest.EqualIn(t, "there is room after writing", true, q.Push([]byte("12345")))
	q.Close()
	_ = r.Close()
	// WriteLines fails only if it was writing a line when the pipe was closed.
	if err := <-done; err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	commontest.EqualIn(t, "a closed queue takes", true, q.Push(make([]byte, 100)))
}

// A long line for which the budget has no room waits a while, and is then dropped. It gives back
// what it holds of the budget, so two long lines do not wait for each other for ever.
func TestALineWithoutRoomIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := guard.NewBudget(100 << 10)
		long := strings.Repeat("x", 200<<10)
		lines := NewLineReader(strings.NewReader(long+"\nnext\n"), 1<<20, budget)
		var dropped *TooLong
		if _, err := lines.Next(); !errors.As(err, &dropped) || !dropped.Full || dropped.Bytes != len(long)+1 {
			t.Errorf("the long line: %v, %+v", err, dropped)
		}
		line, err := lines.Next()
		budget.Hold(100<<10 - len("next\n"))
		if err != nil || string(line) != "next" || !budget.Room() {
			t.Errorf("the next line: %q, %v", line, err)
		}
		lines.Close()
		budget.Hold(len("next\n"))
		commontest.EqualIn(t, "the reader holds nothing", true, budget.Room())
	})
}
