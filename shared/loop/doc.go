// Package loop is how a function's process on one machine takes invocations and
// answers them: both ends of a connection that stands in the place of Lambda's
// Runtime API, because that API costs more than what functions do with it (two
// requests an invocation, each through an HTTP client, and an answer in chunks).
// The process asks for it on the socket of the Runtime API, by
// an upgrade of a request, and the connection carries frames from then on.
//
// A connection has one invocation at a time; a process that takes several has as many
// connections. What Lambda promises a function holds: an invocation has its id,
// deadline and trace; an answer goes out while it is made; an error or a panic is
// reported, and so is one in the middle of an answer. Besides, the end of an invocation
// can carry what would be a line on stderr ([Say]).
//
// The package does not know what a function is invoked for, and starts and ends no
// process. On AWS nothing of it is used.
package loop

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Protocol is the value of Upgrade.
const Protocol = "dormouse-loop"

// Path is behind the name of the instance in the path of the upgrade request.
const Path = "2018-06-01/runtime/loop"

// Invocation is one call of a function.
type Invocation struct {
	ID, ARN, Trace string // at most 64 KiB each
	Deadline       time.Time
	Payload        []byte // at most 1 GiB; the function's until it has answered
}

// Report is an error in the form of Lambda's runtimes.
type Report struct {
	Message string   `json:"errorMessage"`
	Type    string   `json:"errorType"`
	Stack   []string `json:"stackTrace,omitempty"` // of a panic
}

// A frame has a kind, the length of what follows, and that.
//
//	invoke  ▶ process  deadline (8 bytes, Unix milliseconds); id, ARN and trace, each with
//	                   its length (2 bytes) before it; the payload
//	head    ◀ process  begins an answer: its content type
//	data    ◀ process  a piece of it
//	end     ◀ process  ends it: nothing, or a Report if it is not whole
//	failed  ◀ process  a Report in the place of an answer
//	ready   ◀ process  it has done with the invocation, and can have another: what it
//	                   says of the one that has ended, see [Say]
const (
	invoke byte = 'i'
	head   byte = 'h'
	data   byte = 'd'
	end    byte = 'e'
	failed byte = 'f'
	ready  byte = 'r'

	frameHead = 5
	// maxFrame bounds what is believed of a length.
	maxFrame = 1 << 30
	// piece is how much of an answer goes into a frame.
	piece = 32 << 10
	// maxText bounds the frames that are neither an invocation nor data.
	maxText = 1 << 20
)

var errFrame = errors.New("a frame of the loop has not the form it must have")

// begin appends the head of a frame, whose length finish sets.
func begin(b []byte, kind byte) (into []byte, at int) {
	return append(b, kind, 0, 0, 0, 0), len(b)
}

func finish(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at+1:], uint32(len(b)-at-frameHead))
	return b
}

func readHead(from io.Reader, into *[frameHead]byte) (kind byte, length int, err error) {
	if _, err := io.ReadFull(from, into[:]); err != nil {
		return 0, 0, err
	}
	n := lengthOf(into[:])
	if n > maxFrame {
		return 0, 0, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	return into[0], n, nil
}

// lengthOf is what the head of a frame says of what follows.
func lengthOf(frame []byte) int { return int(binary.BigEndian.Uint32(frame[1:])) }

// appendInvoke appends the frame of an invocation, without its payload, which has to
// follow.
func appendInvoke(b []byte, inv Invocation) []byte {
	b, at := begin(b, invoke)
	b = binary.BigEndian.AppendUint64(b, uint64(inv.Deadline.UnixMilli()))
	for _, s := range []string{inv.ID, inv.ARN, inv.Trace} {
		s = s[:min(len(s), 1<<16-1)]
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	binary.BigEndian.PutUint32(b[at+1:], uint32(len(b)-at-frameHead+len(inv.Payload)))
	return b
}

func parseInvoke(b []byte) (Invocation, error) {
	var inv Invocation
	if len(b) < 8 {
		return inv, fmt.Errorf("%w: an invocation of %d bytes", errFrame, len(b))
	}
	inv.Deadline = time.UnixMilli(int64(binary.BigEndian.Uint64(b)))
	b = b[8:]
	for _, s := range []*string{&inv.ID, &inv.ARN, &inv.Trace} {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return inv, fmt.Errorf("%w: an invocation that is cut off", errFrame)
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		*s, b = string(b[2:n]), b[n:]
	}
	inv.Payload = b
	return inv, nil
}

func appendReport(b []byte, kind byte, r Report) []byte {
	text, _ := json.Marshal(r) // strings always encode
	b, at := begin(b, kind)
	return finish(append(b, text...), at)
}

func parseReport(b []byte) *Report {
	r := &Report{}
	if json.Unmarshal(b, r) != nil || r.Type == "" {
		return &Report{Type: "Runtime.Unknown", Message: "the function reported an error without saying which"}
	}
	return r
}
