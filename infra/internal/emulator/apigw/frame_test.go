package apigw

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
)

func guardOf(r io.Reader, limit uint64) *frameGuard {
	return &frameGuard{from: bufio.NewReader(r), limit: limit}
}

func TestAFrameOverTheLimitIsLeftOutWholeAndReportedOnce(t *testing.T) {
	var stream, want []byte
	for _, n := range []int{0, 10, 125, 126, 300, 301, 70_000, 5} {
		f := localtest.MaskedFrame(0x81, bytes.Repeat([]byte{byte(n)}, n))
		stream = append(stream, f...)
		if n <= 300 {
			want = append(want, f...)
		}
	}
	g := guardOf(iotest.OneByteReader(bytes.NewReader(stream)), 300)
	var got []byte
	reports := 0
	for {
		part, err := io.ReadAll(g)
		got = append(got, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, sockets.ErrTooBig) {
			t.Fatal(err)
		}
		reports++
	}
	if reports != 2 || !bytes.Equal(got, want) {
		t.Errorf("%d reports, %d bytes; want 2 and %d", reports, len(got), len(want))
	}
}

func TestAStreamThatEndsInAHeaderIsBroken(t *testing.T) {
	for _, stream := range []string{"\x81", "\x81\xfe\x01", "\x81\xff\x00\x00"} {
		if _, err := io.ReadAll(guardOf(bytes.NewReader([]byte(stream)), 10)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%x: error = %v", stream, err)
		}
	}
}

func TestALengthNoFrameMayHaveIsTooBig(t *testing.T) {
	stream := []byte("\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	if _, err := io.ReadAll(guardOf(bytes.NewReader(stream), 1<<40)); !errors.Is(err, sockets.ErrTooBig) {
		t.Errorf("error = %v", err)
	}
}

func FuzzFrameGuardChangesNothing(f *testing.F) {
	f.Add([]byte("\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00"), uint16(100))
	f.Add(localtest.MaskedFrame(0x81, bytes.Repeat([]byte("x"), 70_000)), uint16(300))
	f.Add([]byte("\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00"), uint16(0))
	f.Add([]byte("\x81"), uint16(1))
	f.Fuzz(func(t *testing.T, stream []byte, limit uint16) {
		whole, err := io.ReadAll(guardOf(bytes.NewReader(stream), uint64(limit)))
		if !bytes.HasPrefix(stream, whole) {
			t.Fatalf("%x became %x", stream, whole)
		}
		if err == nil && len(whole) != len(stream) {
			t.Fatalf("%d of %d bytes without an error", len(whole), len(stream))
		}
		slow, slowErr := io.ReadAll(guardOf(iotest.OneByteReader(bytes.NewReader(stream)), uint64(limit)))
		if !bytes.Equal(whole, slow) || !errors.Is(slowErr, err) {
			t.Fatalf("in pieces: %x, %v; at once: %x, %v", slow, slowErr, whole, err)
		}
	})
}
