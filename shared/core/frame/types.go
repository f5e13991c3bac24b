package frame

import (
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Frame is one of the structs of this file. The fields with a JSON name are the header of the frame.
// The Payload, if any, follows the header.
type Frame interface{ kind() Type }

// FromRunner is a frame that a runner sends.
type FromRunner interface {
	Frame
	From() Sender
}

// Sender says which runner sends a frame.
type Sender struct {
	Box    storage.BoxID      `json:"box,omitempty"`
	Gen    storage.Generation `json:"gen,omitempty"`
	Runner string             `json:"runner,omitempty"` // random id, drawn at start
}

// From implements [FromRunner] for the structs that embed a Sender.
func (s Sender) From() Sender { return s }

// Hello is the first frame on a connection. A runner sends it again as a ping.
type Hello struct {
	Sender
	Token string `json:"token,omitempty"` // one-time; sent until the first Welcome
	Link  int64  `json:"link,omitempty"`  // the number of the connection, by the runner's count
	Task  string `json:"task,omitempty"`  // the fleet's name for the runner
	// Digest names the definition of the server that the runner was started with, ""
	// if the runner does not say.
	Digest string `json:"digest,omitempty"`
	// Baked says that the runner's image contains the server's installed packages.
	Baked bool `json:"baked,omitempty"`
	// Questions are the client-visible ids of open questions, by session. The runner gets the
	// answers that came while it had no connection.
	Questions map[storage.ID][]string `json:"questions,omitempty"`
	// Invited asks for [Welcome.Launch]. A runner in a Lambda function sets it, because it was
	// started without the environment of a box.
	Invited bool `json:"invited,omitempty"`
}

// Pull asks for the messages that wait in the store for the box. Each comes as a [Deliver].
type Pull struct {
	Sender
	N int64 `json:"n,omitempty"`
}

// Taken says that the runner executes the deliveries with these tickets (see [Deliver]). The relay
// notes the deliveries in the store, so that their requests get an end if the box is lost.
type Taken struct {
	Sender
	Tickets []string `json:"tickets,omitempty"`
}

// Ask asks whether a [Deliver] that came late may be executed.
type Ask struct {
	Sender
	Ticket   string           `json:"ticket,omitempty"`
	ID       storage.StreamID `json:"id,omitempty"`
	Round    int              `json:"round,omitempty"`
	NotAfter int64            `json:"notAfter,omitempty"` // NotAfter of the [Deliver]
	Inbox    bool             `json:"inbox,omitempty"`
}

// Return gives back a message that the runner has not executed and will not execute, because the runner
// must end soon. The message is the payload.
type Return struct {
	Sender
	Ticket   string `json:"ticket,omitempty"`
	NotAfter int64  `json:"notAfter,omitempty"` // NotAfter of the [Deliver]
	Payload  []byte `json:"-"`
}

// Events is a batch of one session's events, whose bytes are the payload.
type Events struct {
	Sender
	Session storage.ID  `json:"session,omitempty"`
	Tickets []string    `json:"tickets,omitempty"` // of deliveries that go on after this batch; the relay handles them first, like those of a [Taken]
	Seq     int64       `json:"seq,omitempty"`
	Items   []EventItem `json:"items,omitempty"`
	Payload []byte      `json:"-"`
}

// EventItem describes the events of one stream in a batch. The payload of the frame has the bytes of the
// events, in the order of the items.
type EventItem struct {
	Ticket string           `json:"ticket"`
	Stream storage.StreamID `json:"stream,omitempty"` // "" for the standalone stream
	First  storage.Index    `json:"first,omitempty"`  // index of the first event; 0 if the runner does not know it, which happens only in the standalone stream
	Final  bool             `json:"final,omitempty"`  // the last event ends its stream
	Marked bool             `json:"marked,omitempty"` // this batch ends or suspends the delivery, and the store has a [storage.Item] of it
	Lens   []int            `json:"lens"`
	Asks   *Asks            `json:"asks,omitempty"` // set if the delivery is suspended after the last event
}

// Asks suspends a delivery: the client gets questions, and no process works on the delivery until the
// client has answered. The payload has the request, after the events of the EventItem. The server gets
// the request again, with the answers.
type Asks struct {
	Round     int                `json:"round"` // one more than the Round of the delivery
	Questions []storage.Question `json:"questions"`
	Within    int64              `json:"within"` // milliseconds for the answers
	Len       int                `json:"len"`    // bytes of the request
}

// Values of Status.Phase. PhaseFull: the box runs as many processes as it may. PhaseMemory: the box's
// machine has no memory for another process.
const (
	PhaseFull   = "full"
	PhaseMemory = "memory"
)

// Status reports on a process. A report without a payload is a log line, in which each text is cut to
// 500 bytes. One with a payload needs a Ticket of the session. If Lists is "", the payload is a fresh
// process's result of initialize, which is kept for later clients, and Detail is the protocol version
// that the runner asked for.
type Status struct {
	Sender
	Session storage.ID `json:"session,omitempty"`
	Ticket  string     `json:"ticket,omitempty"`
	Process string     `json:"process,omitempty"`
	Phase   string     `json:"phase,omitempty"`
	Detail  string     `json:"detail,omitempty"`
	Era     wire.Era   `json:"era,omitempty"` // the era of the server, if it was not known before; later runners of the box get it in [EnvEra]
	// Lists, if not "", says that the payload is a fingerprint of the lists of a fresh process. The
	// value of Lists names everything that the lists may depend on. Own says that this includes the
	// principal.
	Lists   string `json:"lists,omitempty"`
	Own     bool   `json:"own,omitempty"`
	Payload []byte `json:"-"`
}

// Bye says that the runner executes nothing more, because it is about to end.
type Bye struct {
	Sender
	Link  int64 `json:"link,omitempty"`
	Looks bool  `json:"looks,omitempty"` // each message that the runner got was an initialize or asked for a list
	Idle  int64 `json:"idle,omitempty"`  // milliseconds for which the box had no work
}

// Part is a piece of a long frame. Only a runner sets the Sender.
type Part struct {
	Sender
	N       int64  `json:"n,omitempty"`
	Of      int    `json:"of,omitempty"`
	Frame   string `json:"frame,omitempty"`
	Payload []byte `json:"-"`
}

// Whole says that the receiver has all parts of a frame, and asks it to handle the frame.
type Whole struct {
	Sender
	Of    int    `json:"of,omitempty"`
	Frame string `json:"frame,omitempty"`
}

// Snapshot is a request about the snapshots of Owner, such as a session. Op is its type: [Get], [Put],
// [Done] or [Forget].
type Snapshot struct {
	Op Type `json:"-"`
	Sender
	N      int64  `json:"n,omitempty"`
	Owner  string `json:"owner,omitempty"`
	Size   int64  `json:"size,omitempty"` // bytes
	Sum    string `json:"sum,omitempty"`  // SHA-256 of what a [Put] will upload, in hexadecimal
	Object string `json:"object,omitempty"`
}

// InstallOwner is the prefix of Snapshot.Owner for a snapshot of installed packages.
const InstallOwner = "install-"

// Welcome answers a [Hello]. The runner may now execute messages for the box, in generation Gen.
type Welcome struct {
	Gen    storage.Generation `json:"gen,omitempty"`
	Link   int64              `json:"link,omitempty"`
	Ticket string             `json:"ticket,omitempty"` // a pass for the next connection; see [PassHeader]
	Retire bool               `json:"retire,omitempty"` // the box should end, because its server was removed or has another definition by now
	// Launch has the environment variables of the box if [Hello.Invited] asked for them. It may
	// hold secrets.
	Launch map[string]string `json:"launch,omitempty"`
}

// Fenced answers a [Hello] that has this Link. It says that another runner runs the box.
type Fenced struct {
	Link int64 `json:"link,omitempty"`
}

// Nudge says that messages wait in the store. The runner answers with a [Pull].
type Nudge struct{}

// Look says nothing. Whoever posts it learns whether the connection is open.
type Look struct{}

// Deliver is a message to execute. The payload is Init and Raw, and Lens their lengths.
type Deliver struct {
	Gen        storage.Generation `json:"gen,omitempty"`
	Session    storage.ID         `json:"session,omitempty"`
	Ticket     string             `json:"ticket,omitempty"`     // the right to write the events of the delivery
	ID         storage.StreamID   `json:"id,omitempty"`         // also names the stream of its events
	Round      int                `json:"round,omitempty"`      // how often the delivery was suspended before, see [Asks]; if above 0, Raw has the answers
	Base       storage.Index      `json:"base,omitempty"`       // the index of the last event before this delivery, in the stream of ID
	Principal  string             `json:"principal,omitempty"`  // a hash that tells the principals of a box apart
	Level      string             `json:"level,omitempty"`      // last logging/setLevel of the session, "" for none
	Subscribed []string           `json:"subscribed,omitempty"` // resource URIs, in the order of subscription
	Sent       int64              `json:"sent,omitempty"`       // Unix milliseconds; when it was posted
	NotAfter   int64              `json:"notAfter,omitempty"`   // Unix milliseconds; a message that comes later than this is not executed
	AckWithin  int64              `json:"ackWithin,omitempty"`  // milliseconds; if the request has not ended by then, the runner sends a [Taken]; 0 for a message without requests
	Inbox      bool               `json:"inbox,omitempty"`      // the store has a [storage.Item] of the message
	Again      bool               `json:"again,omitempty"`      // the session has had a process before
	Moved      bool               `json:"moved,omitempty"`      // the server's lists may have changed since the session's last request
	Held       bool               `json:"held,omitempty"`       // Dormouse itself sends the clients list_changed for tools
	Looks      bool               `json:"looks,omitempty"`      // the message is an initialize or asks for a list
	Lens       []int              `json:"lens,omitempty"`
	Trace      string             `json:"trace,omitempty"` // names the client's request in all logs
	// Secrets are the keys and tokens that the principal has at third parties, by provider. Package
	// credentials bounds the times at which they end, because JSON has no years above 9999.
	Secrets map[string]storage.Secret `json:"secrets,omitempty"`

	Init json.RawMessage `json:"-"` // the params of the client's initialize
	Raw  []byte          `json:"-"` // the message or batch, as the client wrote it
}

// May answers an [Ask].
type May struct {
	ID      storage.StreamID `json:"id,omitempty"`
	Round   int              `json:"round,omitempty"`
	Refused storage.Code     `json:"refused,omitempty"` // "": the runner may execute the message
}

// Pulled answers a [Pull], after a [Deliver] for each of IDs was sent.
type Pulled struct {
	N      int64                    `json:"n,omitempty"`
	IDs    []storage.StreamID       `json:"ids,omitempty"`
	Rounds map[storage.StreamID]int `json:"rounds,omitempty"` // Deliver.Round of those deliveries that were suspended before
}

// Ack answers [Events]. Unless Fenced is set, the runner need not send the batch again.
type Ack struct {
	Session storage.ID         `json:"session,omitempty"`
	Seq     int64              `json:"seq,omitempty"`
	Next    storage.Index      `json:"next,omitempty"`   // index of the next standalone event, if the batch had any
	Closed  []storage.StreamID `json:"closed,omitempty"` // streams that ended without an event of the runner
	Fenced  bool               `json:"fenced,omitempty"`
}

// ByeOK answers a [Bye]. The box now counts as asleep.
type ByeOK struct {
	Link int64 `json:"link,omitempty"`
}

// Answer is a client's response to a question of the server. The response is the payload.
type Answer struct {
	Session  storage.ID `json:"session,omitempty"`
	Question string     `json:"question,omitempty"`
	Payload  []byte     `json:"-"`
}

// Stop says that a session has ended, so its process must end.
type Stop struct {
	Session storage.ID `json:"session,omitempty"`
}

// Halt stops the process of a session, or all processes of the box. The sessions do not end.
type Halt struct {
	Session storage.ID `json:"session,omitempty"` // "": all sessions of the box
	By      string     `json:"by"`                // the operator's name, or the reason, for texts that clients get
	In      int64      `json:"in,omitempty"`      // milliseconds that calls in flight may take to end
	Keep    bool       `json:"keep,omitempty"`    // the next process may go on with the memory of this one; else it starts afresh
	Alone   bool       `json:"alone,omitempty"`   // no client is connected that could answer a question
}

// Within is how long calls in flight may take to end, an hour at most.
func (h Halt) Within() time.Duration {
	return time.Duration(min(max(h.In, 0), time.Hour.Milliseconds())) * time.Millisecond
}

// Yield asks the box to end the process that has been idle longest, if it has been idle for
// [YieldAfter]. After a Yield, the box sleeps as soon as it has been without work for
// YieldAfter.
type Yield struct{}

// Drain asks the runner to open a new connection within a time, because this program is about to be
// replaced. The runner chooses a random moment, so that not all runners connect at once.
type Drain struct {
	In int64 `json:"in,omitempty"` // milliseconds
}

// PartOK says that a [Part] that the runner sent is stored.
type PartOK struct {
	N     int64  `json:"n,omitempty"`
	Frame string `json:"frame,omitempty"`
}

// Kept answers a [Snapshot]. The type of that request says which fields are set.
type Kept struct {
	N       int64             `json:"n,omitempty"`
	Object  string            `json:"object,omitempty"`
	URL     string            `json:"url,omitempty"` // a secret
	Header  map[string]string `json:"header,omitempty"`
	Saved   int64             `json:"saved,omitempty"` // Unix milliseconds
	Sum     string            `json:"sum,omitempty"`   // Snapshot.Sum of the Put that uploaded the object
	Refused storage.Code      `json:"refused,omitempty"`
}

// Other is a frame of a type that this version does not know. It is no error, and both
// ends ignore it.
type Other struct{ Type Type }

// Kind returns the type of a frame.
func Kind(f Frame) Type { return f.kind() }

func (Hello) kind() Type      { return TypeHello }
func (Pull) kind() Type       { return TypePull }
func (Taken) kind() Type      { return TypeTaken }
func (Ask) kind() Type        { return TypeAsk }
func (Return) kind() Type     { return TypeReturn }
func (Events) kind() Type     { return TypeEvents }
func (Status) kind() Type     { return TypeStatus }
func (Bye) kind() Type        { return TypeBye }
func (Part) kind() Type       { return TypePart }
func (Whole) kind() Type      { return TypeWhole }
func (Welcome) kind() Type    { return TypeWelcome }
func (Fenced) kind() Type     { return TypeFenced }
func (Nudge) kind() Type      { return TypeNudge }
func (Look) kind() Type       { return TypeLook }
func (Deliver) kind() Type    { return TypeDeliver }
func (May) kind() Type        { return TypeMay }
func (Pulled) kind() Type     { return TypePulled }
func (Ack) kind() Type        { return TypeAck }
func (ByeOK) kind() Type      { return TypeByeOK }
func (Answer) kind() Type     { return TypeAnswer }
func (Stop) kind() Type       { return TypeStop }
func (Halt) kind() Type       { return TypeHalt }
func (Yield) kind() Type      { return TypeYield }
func (Drain) kind() Type      { return TypeDrain }
func (PartOK) kind() Type     { return TypePartOK }
func (Kept) kind() Type       { return TypeKept }
func (s Snapshot) kind() Type { return s.Op }
func (o Other) kind() Type    { return o.Type }
