// Package frametest writes and reads frames for tests.
package frametest

import (
	"bytes"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Frame can be any frame that a runner or the relay can write, even a hostile one. It has the fields
// of all types, which package frame explains. Frame repeats their JSON tags, so that a test fails if
// the wire format changes. A comment such as "on a hello" names the type of the frames that have the
// field.
type Frame struct {
	V       int                `json:"v"`
	Type    frame.Type         `json:"t"`
	Box     storage.BoxID      `json:"box,omitempty"`
	Gen     storage.Generation `json:"gen,omitempty"`
	Token   string             `json:"token,omitempty"`  // one-time; in hellos before the first welcome
	Runner  string             `json:"runner,omitempty"` // random id, chosen when the runner starts
	Link    int64              `json:"link,omitempty"`   // the number of the connection, by the runner's count
	Task    string             `json:"task,omitempty"`   // the id of the runner's task in its fleet
	Digest  string             `json:"digest,omitempty"` // names the server's definition that the runner was started with
	Retire  bool               `json:"retire,omitempty"` // on a welcome: the server has another definition by now
	Session storage.ID         `json:"session,omitempty"`

	Invited bool              `json:"invited,omitempty"` // on a hello: the runner needs Launch
	Baked   bool              `json:"baked,omitempty"`   // on a hello: the runner's image contains the server's packages
	Launch  map[string]string `json:"launch,omitempty"`  // on a welcome: environment variables of the box

	// Questions are the ids under which clients know the open questions of servers, by session.
	Questions map[storage.ID][]string `json:"questions,omitempty"`

	N     int64              `json:"n,omitempty"`
	Of    int                `json:"of,omitempty"`
	Frame string             `json:"frame,omitempty"`
	IDs   []storage.StreamID `json:"ids,omitempty"`
	// Rounds has the Round of those deliveries among IDs that were suspended before; see [frame.Asks].
	Rounds  map[storage.StreamID]int `json:"rounds,omitempty"`
	Tickets []string                 `json:"tickets,omitempty"`
	Ticket  string                   `json:"ticket,omitempty"`

	// The fields of [frame.Events] and of its answer, [frame.Ack].
	Seq    int64              `json:"seq,omitempty"`
	Items  []frame.EventItem  `json:"items,omitempty"`
	Next   storage.Index      `json:"next,omitempty"`
	Closed []storage.StreamID `json:"closed,omitempty"`
	Fenced bool               `json:"fenced,omitempty"`

	// The fields of [frame.Deliver].
	ID         storage.StreamID `json:"id,omitempty"`
	Round      int              `json:"round,omitempty"`
	Base       storage.Index    `json:"base,omitempty"`
	Principal  string           `json:"principal,omitempty"` // a hash by which the box tells its principals apart
	Server     string           `json:"server,omitempty"`
	Level      string           `json:"level,omitempty"`
	Subscribed []string         `json:"subscribed,omitempty"`
	Sent       int64            `json:"sent,omitempty"`      // Unix milliseconds; when the frame was posted
	NotAfter   int64            `json:"notAfter,omitempty"`  // Unix milliseconds
	AckWithin  int64            `json:"ackWithin,omitempty"` // milliseconds
	Inbox      bool             `json:"inbox,omitempty"`
	Again      bool             `json:"again,omitempty"` // the session has had a process before
	Moved      bool             `json:"moved,omitempty"` // the server's lists may have changed since the session's last request
	// Looks on a [frame.Deliver] says that the message is an initialize or asks for a list.
	// Looks on a [frame.Bye] says that the runner got only messages of these kinds.
	Looks bool   `json:"looks,omitempty"`
	Lens  []int  `json:"lens,omitempty"`
	Trace string `json:"trace,omitempty"` // names the client's request in all logs

	Secrets map[string]storage.Secret `json:"secrets,omitempty"` // on a deliver

	Question string `json:"question,omitempty"`
	In       int64  `json:"in,omitempty"`   // on a halt or a drain: milliseconds
	By       string `json:"by,omitempty"`   // on a halt: the operator's name, or the reason
	Keep     bool   `json:"keep,omitempty"` // on a halt: the next process may go on with the memory

	// The fields of [frame.Status].
	Process string `json:"process,omitempty"`
	Phase   string `json:"phase,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Era     string `json:"era,omitempty"` // the server's era, if it was not known before
	Lists   string `json:"lists,omitempty"`
	Own     bool   `json:"own,omitempty"`

	// The fields of [frame.Snapshot] and of its answer, [frame.Kept].
	Owner   string            `json:"owner,omitempty"`
	Size    int64             `json:"size,omitempty"` // bytes
	Object  string            `json:"object,omitempty"`
	URL     string            `json:"url,omitempty"` // a secret
	Header  map[string]string `json:"header,omitempty"`
	Saved   int64             `json:"saved,omitempty"` // Unix milliseconds
	Refused storage.Code      `json:"refused,omitempty"`

	Payload []byte `json:"-"`
}

// Encode returns the bytes of a frame of [frame.Version]. It does not limit the length.
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

// EncodeAs is like [Encode], but the frame says that it has another version of the protocol.
func EncodeAs(version string, f Frame) []byte {
	return bytes.Replace(Encode(f), []byte(`"v":1`), []byte(`"v":`+version), 1)
}

// EncodeWithMore is like [Encode], and adds header fields that package frame does not know.
func EncodeWithMore(f Frame) []byte {
	return bytes.Replace(Encode(f), []byte(`{"v":1`), []byte(`{"new":{"v":[2,null]},"v":1,"also-new":"é"`), 1)
}

// Decode reads a frame. Errors: as [frame.Decode].
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
