// Package frametest writes and reads frames of the relay for tests.
package frametest

import (
	"bytes"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Frame can be any frame that a runner or a function can write, even a hostile one. It has the fields
// of all types. So tests write any field with any type, and read frames without knowing their type.
// Package frame has one struct for each type. The tags here are written separately, so that a test
// fails when the wire format changes.
type Frame struct {
	V       int                `json:"v"`
	Type    frame.Type         `json:"t"`
	Box     storage.BoxID      `json:"box,omitempty"`
	Gen     storage.Generation `json:"gen,omitempty"`
	Token   string             `json:"token,omitempty"`  // one-time, first hello only
	Runner  string             `json:"runner,omitempty"` // random id, drawn at start
	Link    int64              `json:"link,omitempty"`   // counts the runner's hellos on new connections
	Task    string             `json:"task,omitempty"`   // the fleet's name for the runner
	Digest  string             `json:"digest,omitempty"` // of the definition that the runner was started with
	Retire  bool               `json:"retire,omitempty"` // on a welcome: the server has another definition by now
	Session storage.ID         `json:"session,omitempty"`

	Invited bool              `json:"invited,omitempty"` // on a hello: the runner has no launch
	Baked   bool              `json:"baked,omitempty"`   // on a hello: the image has the install
	Launch  map[string]string `json:"launch,omitempty"`  // on a welcome

	// Questions are the client-visible ids of open questions, by session. The sender of a hello asks
	// for the answers that came while the runner had no connection.
	Questions map[storage.ID][]string `json:"questions,omitempty"`

	N     int64              `json:"n,omitempty"`
	Of    int                `json:"of,omitempty"`
	Frame string             `json:"frame,omitempty"`
	IDs   []storage.StreamID `json:"ids,omitempty"`
	// Rounds has the Round of each delivery among IDs that was suspended before.
	Rounds  map[storage.StreamID]int `json:"rounds,omitempty"`
	Tickets []string                 `json:"tickets,omitempty"`
	Ticket  string                   `json:"ticket,omitempty"`

	// The fields of Events and its answer. Next on an ack is the index of the next standalone event, if
	// the batch had any.
	Seq    int64              `json:"seq,omitempty"`
	Items  []frame.EventItem  `json:"items,omitempty"`
	Next   storage.Index      `json:"next,omitempty"`
	Closed []storage.StreamID `json:"closed,omitempty"`
	Fenced bool               `json:"fenced,omitempty"`

	// The fields of Deliver. Lens cuts the payload into the client's initialize params and the message.
	// Round is how often the delivery was suspended, Base the last index of its stream.
	ID         storage.StreamID `json:"id,omitempty"`
	Round      int              `json:"round,omitempty"`
	Base       storage.Index    `json:"base,omitempty"`
	Principal  string           `json:"principal,omitempty"` // a hash that tells the principals of a box apart
	Server     string           `json:"server,omitempty"`
	Level      string           `json:"level,omitempty"`
	Subscribed []string         `json:"subscribed,omitempty"`
	Sent       int64            `json:"sent,omitempty"`      // Unix milliseconds; when it was posted
	NotAfter   int64            `json:"notAfter,omitempty"`  // Unix milliseconds
	AckWithin  int64            `json:"ackWithin,omitempty"` // milliseconds
	Inbox      bool             `json:"inbox,omitempty"`
	Again      bool             `json:"again,omitempty"` // the session has had a process before
	Moved      bool             `json:"moved,omitempty"` // the server's lists may have changed since the session's last request
	// Looks on a deliver says that the message is an initialize or asks only for a list. On a bye it
	// says that the runner got no other messages.
	Looks bool   `json:"looks,omitempty"`
	Lens  []int  `json:"lens,omitempty"`
	Trace string `json:"trace,omitempty"` // the client's request in all logs

	Question string `json:"question,omitempty"`
	In       int64  `json:"in,omitempty"` // milliseconds
	By       string `json:"by,omitempty"` // the operator who halts

	// The fields of Status. The payload, if there is one, is the result of a fresh process's
	// initialize. Detail is then the requested protocol version.
	Process string `json:"process,omitempty"`
	Phase   string `json:"phase,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Era     string `json:"era,omitempty"` // of the server, if it was not known before
	Lists   string `json:"lists,omitempty"`
	Own     bool   `json:"own,omitempty"`

	// The fields of Snapshot and of its answer, Kept. The Type of the request decides which fields a
	// Kept has.
	Owner   string            `json:"owner,omitempty"`
	Size    int64             `json:"size,omitempty"` // bytes
	Object  string            `json:"object,omitempty"`
	URL     string            `json:"url,omitempty"` // a secret
	Header  map[string]string `json:"header,omitempty"`
	Saved   int64             `json:"saved,omitempty"` // Unix milliseconds
	Refused storage.Code      `json:"refused,omitempty"`

	Payload []byte `json:"-"`
}

// Encode writes a frame of any length, in this version of the protocol.
func Encode(f Frame) []byte {
	f.V = frame.Version
	b := bytes.NewBuffer(nil)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(f); err != nil {
		panic(err) // impossible: a Frame has only values that JSON can encode
	}
	if len(f.Payload) == 0 {
		b.Truncate(b.Len() - 1)
	}
	return append(b.Bytes(), f.Payload...)
}

// EncodeAs writes a frame as another version of the protocol might.
func EncodeAs(version string, f Frame) []byte {
	return bytes.Replace(Encode(f), []byte(`"v":1`), []byte(`"v":`+version), 1)
}

// EncodeWithMore writes a frame with header fields that this version does not know.
func EncodeWithMore(f Frame) []byte {
	return bytes.Replace(Encode(f), []byte(`{"v":1`), []byte(`{"new":{"v":[2,null]},"v":1,"also-new":"é"`), 1)
}

// Decode reads a frame that [frame.Decode] accepts, with the same errors.
func Decode(data []byte) (Frame, error) {
	if _, err := frame.Decode(data); err != nil {
		return Frame{}, err
	}
	head, payload, _ := bytes.Cut(data, []byte{'\n'})
	var f Frame
	if err := json.Unmarshal(head, &f); err != nil {
		return Frame{}, err
	}
	f.Payload = payload
	return f, nil
}
