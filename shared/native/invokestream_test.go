package native

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"testing"
)

// FuzzAnswerOfLambda: whatever comes, reading ends, and what is read was in it.
func FuzzAnswerOfLambda(f *testing.F) {
	frame := func(event string, payload string) []byte {
		const name = ":event-type"
		headers := append([]byte{byte(len(name))}, name...)
		headers = append(binary.BigEndian.AppendUint16(append(headers, isText), uint16(len(event))), event...)
		b := binary.BigEndian.AppendUint32(nil, uint32(preludeSize+len(headers)+len(payload)+crcSize))
		b = binary.BigEndian.AppendUint32(b, uint32(len(headers)))
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
		b = append(append(b, headers...), payload...)
		return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	}
	end := frame("InvokeComplete", "{}")
	f.Add([]byte(nil), "")
	f.Add(append(frame("PayloadChunk", "hello"), end...), "hello")
	f.Add(append(append(frame("PayloadChunk", "he"), frame("PayloadChunk", "llo")...), end...), "hello")
	f.Add(frame("InvokeComplete", `{"ErrorCode":"x"}`), "")
	f.Add(end[:len(end)-1], "")
	f.Add(bytes.Repeat([]byte{0xff}, 32), "")
	f.Fuzz(func(t *testing.T, stream []byte, want string) {
		got, err := io.ReadAll(payloads(io.NopCloser(bytes.NewReader(stream))))
		if len(got) > len(stream) || !bytes.Contains(stream, got[:min(len(got), 1)]) {
			t.Errorf("read %d bytes out of %d", len(got), len(stream))
		}
		whole := append(frame("PayloadChunk", want), end...)
		if want == "" {
			whole = end
		}
		back, err2 := io.ReadAll(payloads(io.NopCloser(bytes.NewReader(whole))))
		if string(back) != want || err2 != nil {
			t.Errorf("%q came back as %q, %v (and of what was given: %v)", want, back, err2, err)
		}
	})
}
