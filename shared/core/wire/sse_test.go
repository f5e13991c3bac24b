package wire_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestAppendSSE(t *testing.T) {
	tests := []struct {
		name  string
		event wire.SSE
		want  string
	}{
		{"message", wire.SSE{Name: "message", Data: []byte(`{"a":1}`)}, "event: message\ndata: {\"a\":1}\n\n"},
		{"cursor", wire.SSE{ID: "0.k7/s", Retry: 2 * time.Second, HasData: true}, "id: 0.k7/s\nretry: 2000\ndata: \n\n"},
		{"id without data line", wire.SSE{ID: "7"}, "id: 7\n\n"},
		{"lines of every kind", wire.SSE{Data: []byte("a\nb\r\nc\rd\n")}, "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"},
		{"retry below a millisecond", wire.SSE{Retry: 999 * time.Microsecond, HasData: true}, "data: \n\n"},
		{"no other field through id or name", wire.SSE{ID: "1\ndata: x", Name: "a\r\x00b", HasData: true}, "id: 1data: x\nevent: ab\ndata: \n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := wire.AppendSSE([]byte("before|"), tt.event)
			commontest.SameIn(t, "bytes differ", "before|"+tt.want, string(got))
		})
	}
}

func TestSSEReaderReadsLikeAnEventSource(t *testing.T) {
	tests := []struct {
		name, stream string
		want         []wire.SSE
	}{
		{"LF", "id: 1\nevent: e\nretry: 20\ndata: x\n\n", []wire.SSE{{ID: "1", Name: "e", Retry: 20 * time.Millisecond, Data: []byte("x"), HasData: true}}},
		{"CR", "data: x\rdata: y\r\rdata: z\r\r", []wire.SSE{data("x\ny"), data("z")}},
		{"CRLF", "data: x\r\ndata: y\r\n\r\ndata: z\r\n\r\n", []wire.SSE{data("x\ny"), data("z")}},
		{"all ends mixed", "data: x\r\ndata: y\rdata: z\n\rdata: w\n\n", []wire.SSE{data("x\ny\nz"), data("w")}},
		{"byte order mark at the start only", "\ufeffdata: x\n\n\ufeffdata: y\n\n", []wire.SSE{data("x")}},
		{"comments", ": hello\n\n:\ndata: x\n:data: y\n\n", []wire.SSE{data("x")}},
		{"field without colon", "data\ndata\n\n", []wire.SSE{{Data: []byte("\n"), HasData: true}}},
		{"empty data", "id: 1\ndata: \n\nid: 2\n\n", []wire.SSE{{ID: "1", HasData: true}, {ID: "2"}}},
		{"retry alone", "retry: 5\n\n", []wire.SSE{{Retry: 5 * time.Millisecond}}},
		{"retry of digits only", "retry: 1s\nretry: -1\nretry:\nretry: 9300000000000\nretry: 9999999999999999999\ndata: x\n\n", []wire.SSE{data("x")}},
		{"id with NUL", "id: 1\nid: 2\x00\ndata: x\n\n", []wire.SSE{{ID: "1", Data: []byte("x"), HasData: true}}},
		{"unknown fields", "foo: 1\nDATA: 2\ndata: x\n\n", []wire.SSE{data("x")}},
		{"event the stream cuts off", "data: x\n\ndata: y\n", []wire.SSE{data("x")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for how, read := range map[string]func(io.Reader) io.Reader{
				"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "the end with the last bytes": iotest.DataErrReader,
			} {
				got, err := readAll(read(strings.NewReader(tt.stream)), 100)
				if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, io.EOF) {
					t.Errorf("%s: error %v, events differ (-want +got):\n%s", how, err, diff)
				}
			}
		})
	}
}

func TestSSEReaderReturnsAnEventWithoutWaitingForMore(t *testing.T) {
	for _, stream := range []string{"data: x\n\n", "data: x\r\r", "data: x\r\n\r\n", "data: x\r\n\r"} {
		r := wire.NewSSEReader(&once{t: t, stream: stream}, 100)
		if e, err := r.Next(); err != nil || string(e.Data) != "x" {
			t.Errorf("%q: got %q, %v", stream, e.Data, err)
		}
	}
}

func TestSSEReaderRefusesWhatIsOverItsLimit(t *testing.T) {
	tests := []struct {
		name, stream string
		events       int
		want         error
	}{
		{"data at the limit", "data: 12345678\n\ndata: 1234\ndata: 678\n\n", 2, io.EOF},
		{"one line over", "data: 123456789\n\ndata: x\n\n", 0, wire.ErrEventTooLarge},
		{"empty lines together over", strings.Repeat("data\n", 10) + "\n", 0, wire.ErrEventTooLarge},
		{"line that never ends", ": " + strings.Repeat("x", 1<<20), 0, wire.ErrEventTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			events, err := readAll(strings.NewReader(tt.stream), 8)
			if len(events) != tt.events || !errors.Is(err, tt.want) {
				t.Errorf("got %d events and error %v, want %d and %v", len(events), err, tt.events, tt.want)
			}
		})
	}
}

func data(s string) wire.SSE { return wire.SSE{Data: []byte(s), HasData: true} }

func readAll(src io.Reader, maxEvent int) (events []wire.SSE, err error) {
	r := wire.NewSSEReader(src, maxEvent)
	for {
		e, err := r.Next()
		if err != nil {
			return events, err
		}
		events = append(events, e)
	}
}

// once returns its stream in one read and fails the test at the second.
type once struct {
	t      *testing.T
	stream string
	read   bool
}

func (o *once) Read(p []byte) (int, error) {
	if o.read {
		o.t.Errorf("%q: the reader asked for more before it returned the event", o.stream)
		return 0, io.EOF
	}
	o.read = true
	return copy(p, o.stream), nil
}
