package frame

import (
	"bytes"
	"context"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// This file has the two interfaces between a box, which runs the processes of a server, and the code
// that connects the box with sessions.

// Executor is a box. One goroutine calls all methods, one after the other, in the order in which the
// frames came. No method may wait for the end of [Link.Run].
type Executor interface {
	// Deliver executes a message, whose Init and Raw belong to the Executor. It is called at most once
	// for each ID and Round. For a message with requests, the box must send an Event with Final or with
	// Asks. After an Event with Asks the box forgets the delivery.
	Deliver(f Deliver)
	// Answer passes on the client's response to a question. Answer may be called twice for one
	// response, and for a question that is not open any more.
	Answer(s storage.ID, question string, raw []byte)
	// CloseStream says that something else than the box has ended a request stream, such as the
	// client's cancel. The box cancels the calls of the stream. CloseStream may also be called
	// for a stream that the box has ended.
	CloseStream(s storage.ID, stream storage.StreamID)
	// StopSession says that the client has ended a session. The box stops its process.
	StopSession(s storage.ID)
	// Halt stops processes. The sessions do not end.
	Halt(h Halt)
	// Questions returns the client-visible ids of the open questions, by session.
	Questions() map[storage.ID][]string
	// IdleSince returns the time of the last activity in the box. ok is true only if no request is in
	// flight and no process is being started.
	IdleSince() (since time.Time, ok bool)
}

// Event is one message of a process. Raw is one line of JSON without the newline, and
// belongs to the Link.
type Event struct {
	Session storage.ID
	Stream  storage.StreamID // storage.Standalone, or the id of the delivery it belongs to
	Ticket  string           // the Ticket of the delivery; for the standalone stream "" or the newest of the session
	Raw     []byte
	Final   bool        // the last event of its request stream
	Asks    *Suspension // not nil: after this event the delivery is suspended
}

// Suspension ends the work on a delivery until the client has answered questions of the server. The box
// forgets the delivery; the store keeps it. The questions are events of the delivery's stream, and the
// last question carries the Suspension. [storage.QuestionID] makes the ids of the questions, with the
// delivery's Round + 1.
type Suspension struct {
	Questions []storage.Question
	Raw       []byte        // the request, or a batch, that the server gets again with the answers
	Within    time.Duration // how long the client may take to answer
}

// Pauses between two calls of [Executor.IdleSince].
const (
	MostUnasked    = 30 * time.Second      // the longest, for a busy box
	UnaskedHasty   = time.Second           // for a box whose processes were all stopped
	UnaskedClosing = 50 * time.Millisecond // for a box that is told to end
)

// YieldAfter is how long a box that was asked to make room stays awake without work.
const YieldAfter = 10 * time.Second

// RefuseFor is how long a box refuses new messages after the definition of its server has changed. If
// all calls end within that time, the box ends, and the next message starts a box with the new
// definition. If a call takes longer, the box takes messages again.
const RefuseFor = 5 * time.Second

// Link takes what a box sends to its sessions.
type Link interface {
	// Run returns when the box may end: it was idle for long enough, or ctx is done. As soon as ctx is
	// done, no new message is executed, and the caller stops the processes.
	Run(ctx context.Context) error
	// Event takes an event. It blocks while too many bytes of the event's session are not stored yet.
	Event(Event)
	// Status sends a report, whose Sender the Link sets. A report without a Payload may be lost.
	Status(Status)
	// Snapshot sends a request about the snapshots of its Owner, and waits for the reply.
	Snapshot(context.Context, Snapshot) (Kept, error)
}

// Joining is what a box tells the code that connects it with sessions. Both run in the same program.
type Joining struct {
	Box      storage.BoxID
	Token    string // the one-time token with which the box was started
	Executor Executor
	Digest   string        // of the definition of the server that the box was started with
	Retire   func()        // ends the box when nothing is in flight, because its server has another definition
	Idle     time.Duration // the box sleeps after it was idle for this long; 0: the default
	Flush    time.Duration // how long requests in flight may take to end after Run's ctx is done
	Guard    interface {   // catches panics of the code of the box
		Go(do func())
		Catch()
		Panicked() <-chan struct{}
	}
	Hold func(bytes int) // adds bytes to the memory of the box; a negative number when they are freed
}

// Fit returns what the relay can carry in place of e. It replaces bytes that are not UTF-8. If e is too
// large, or asks the client too much or too often, Fit returns error responses, or nothing if no request
// waits for e. The argument round is how often the delivery was suspended before. If Fit has replaced or
// dropped e, why is the reason.
func Fit(e Event, round int) (fit []Event, why string) {
	if !utf8.Valid(e.Raw) {
		e.Raw, why = bytes.ToValidUTF8(e.Raw, []byte("\uFFFD")), "bytes are not UTF-8"
	}
	if len(e.Raw) > MaxMessage {
		why = "it is over the limit"
		m, err := wire.Parse(e.Raw)
		if !e.Final && (err != nil || m.Kind != wire.Response) {
			return nil, why
		}
		e.Raw = wire.ErrorResponse(bytes.Clone(m.ID), &wire.Error{
			Code:    wire.CodeInternal,
			Message: "tool_call: the response is larger than the relay carries; ask for less at a time",
			Data:    map[string]any{"phase": "tool_call", "bytes": len(e.Raw), "limit": MaxMessage},
		})
	}
	if e.Asks == nil {
		return []Event{e}, why
	}
	if e.Stream == storage.Standalone {
		return nil, "it asks for no request"
	}
	e.Asks.Raw = bytes.ToValidUTF8(e.Asks.Raw, []byte("\uFFFD"))
	switch {
	case len(e.Raw)+len(e.Asks.Raw) > MaxMessage:
		why = "the question and the request that is to be sent again are larger than the relay carries"
	case len(e.Asks.Questions) == 0 || len(e.Asks.Questions) > MaxQuestions:
		why = "the server asks for too much at a time"
	case round >= storage.MaxRounds:
		why = "the server has asked too often"
	default:
		return []Event{e}, why
	}
	ids := RequestIDs(e.Asks.Raw)
	for i, id := range ids {
		raw := wire.ErrorResponse(id, &wire.Error{Code: wire.CodeInternal, Message: "tool_call: " + why, Data: map[string]any{"phase": "tool_call"}})
		fit = append(fit, Event{Session: e.Session, Stream: e.Stream, Ticket: e.Ticket, Raw: raw, Final: i == len(ids)-1})
	}
	return fit, why
}
