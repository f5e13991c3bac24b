package frame

import (
	"bytes"
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// This file has what a box is given and what it says, as both ends in its program see it: the
// runner, or a host in the same program.

// Executor is a box. For the runner one goroutine calls all methods, one after the other, in
// the order in which the frames came. While a method blocks, no other is called. No method
// may wait for the end of [Link.Run].
type Executor interface {
	// Deliver executes a message. It is called at most once for a delivery id and round.
	// If the delivery has requests, the box must send one Event with Final or with Asks
	// for it. After an Event with Asks the box forgets the delivery.
	Deliver(d Delivery)
	// Answer passes on the client's response to a question. It may be called twice for one
	// response, and for a question that is not open any more.
	Answer(s storage.ID, question string, raw []byte)
	// CloseStream says that the host has ended a request stream by itself. The box cancels
	// its calls; events that they still send are dropped. The stream may have ended in the
	// box as well.
	CloseStream(s storage.ID, stream storage.StreamID)
	// StopSession says that the client has ended a session. The box stops its process.
	StopSession(s storage.ID)
	// Halt stops the process of a session, or with "" all processes, for an operator whom
	// by names. Calls in flight get a time to end. The sessions stay.
	Halt(s storage.ID, by string, within time.Duration)
	// Questions returns the client-visible ids of the open questions, by session.
	Questions() map[storage.ID][]string
	// IdleSince returns the time of the last activity in the box. ok is true only if no
	// request is in flight and no start is under way.
	IdleSince() (since time.Time, ok bool)
}

// Delivery is one client message (or batch) to execute. Init and Raw belong to
// the Executor.
type Delivery struct {
	ID          storage.StreamID // deliver id, and the stream for its events
	Round       int              // how often it was suspended; above 0, Raw has the answers
	Session     storage.ID
	Principal   string   // a hash; the same for all sessions of one principal in the box, and different for other principals
	Ticket      string   // the Ticket of its events
	Level       string   // last logging/setLevel of the session, "" for none
	Subscribed  []string // resource URIs, in the order of subscription
	Init        json.RawMessage
	Raw         []byte                    // as the client wrote it
	HasRequests bool                      // Raw has requests, each of which the box has to end
	Again       bool                      // the session has had a process before
	Moved       bool                      // the server may list otherwise than when the session last had a request
	Held        bool                      // clients hear of changed tools, whether the server tells of them or not
	Secrets     map[string]storage.Secret // keys and tokens of the principal at third parties, by provider
}

// Event is one message of a process. Raw is one line of JSON without the newline, and
// belongs to the Link.
type Event struct {
	Session storage.ID
	Stream  storage.StreamID // storage.Standalone, or the id of the delivery it belongs to
	Ticket  string           // the delivery's; for the standalone stream "" or the session's newest
	Raw     []byte
	Final   bool        // the last event of its request stream
	Asks    *Suspension // not nil: the last event of this round of the stream
}

// Suspension asks the host to suspend a delivery that needs something of its client. The
// delivery waits, without this box, for answers to its questions. Events of its stream
// have asked the questions; the Suspension comes with the last of them. The ids of the
// questions are those of [storage.QuestionID], for the round after the delivery's.
type Suspension struct {
	Questions []storage.Question
	Raw       []byte        // the request, or a batch, to send again; without answers
	Within    time.Duration // how long the client may take to answer
}

// StatusReport tells the host about a process. With a Handshake it is the result of a
// fresh process's initialize, which the host keeps. Detail is then the requested protocol
// version, and Ticket is one of the session's. Without a Handshake it is a line for the
// host's log, and the host cuts each text in it to 500 bytes.
type StatusReport struct {
	Session   storage.ID
	Ticket    string
	Process   string
	Phase     string
	Detail    string
	Handshake json.RawMessage
	// Era goes with a Handshake if the host does not know yet which era the server speaks:
	// [EraModern], [EraLegacy] or [EraDual]. A later runner of the box finds it in [EnvEra].
	Era string
	// Lists says that Handshake is a fingerprint of the lists of a fresh process instead. See
	// [Status].
	Lists string
	Own   bool // goes with Lists
}

// Pauses between two questions to a box whether it may sleep.
const (
	MostUnasked    = 30 * time.Second      // the longest, of a busy box
	UnaskedHasty   = time.Second           // of one whose processes were all stopped
	UnaskedClosing = 50 * time.Millisecond // of one that is told to end
)

// YieldAfter is how long a box that was asked to make room stays awake without work.
const YieldAfter = 10 * time.Second

// RefuseFor is how long a retiring box takes no new message. Most calls end within that time,
// and then the next message finds the new definition. Longer calls must not hold up others.
const RefuseFor = 5 * time.Second

// Link is what a box says to its host.
type Link interface {
	// Run runs until the box may end: it is asleep, or ctx is done. From the moment ctx is
	// done no new message is executed, and the caller stops the processes meanwhile.
	Run(ctx context.Context) error
	// Event takes an event, and blocks while too much of its session waits for the host.
	Event(Event)
	// Status sends a report, which may be lost unless it has a Handshake.
	Status(StatusReport)
	// Snapshot asks the host about the snapshots of an owner.
	Snapshot(context.Context, Snapshot) (Kept, error)
}

// Joining is what a box brings to a host in the same program.
type Joining struct {
	Box      storage.BoxID
	Token    string // of the start
	Executor Executor
	Digest   string        // names the definition of the server that the box was started with
	Retire   func()        // ends the box when nothing is in flight, because its server is defined otherwise by now
	Idle     time.Duration // the box sleeps after it was idle for this long; 0: the default
	Flush    time.Duration // how long requests in flight have to end after Run's ctx is done
	Guard    interface {   // catches panics of the code of the box
		Go(do func())
		Catch()
		Panicked() <-chan struct{}
	}
	Hold func(bytes int) // counts bytes that are held for the box
}

// Fit returns the events that may take the place of e: e in valid UTF-8, or errors if it is
// larger than the relay carries. round is how often its delivery was suspended before. why is
// the reason if e was changed; an event that no request waits for is then left out.
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
