package session

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"
)

// State of a session.
type State string

// The states a session passes through, in this order. Streamable HTTP begins with
// Created, a WebSocket or an SSE stream with Opened.
const (
	Opened  State = "opened"  // there is a connection; the client has not sent initialize
	Created State = "created" // initialize was answered or is on its way
	Ready   State = "ready"   // the client has sent notifications/initialized
	Ended   State = "ended"   // nothing more is accepted; see Quit
)

// Quit is why a session ended. It is kept on the session until its row expires,
// for operators: a client is told that there is no such session, whatever the
// reason. A Quit is therefore also an error, the cause of such a NotFound.
type Quit string

// The reasons a session can end for.
const (
	QuitNone     Quit = ""
	QuitClient   Quit = "client_terminated"   // DELETE; Host.End
	QuitService  Quit = "service_terminated"  // an operator, or a server taken out of the servers file; Host.Terminate
	QuitNoInit   Quit = "expected_initialize" // initialize failed, so there never was a session
	QuitCanceled Quit = "cancelled"           // the same, because initialize was cancelled
	// QuitExpired is never stored, for a session that expires is not ended by
	// anybody. It is what a store says of a row it finds expired and still has.
	QuitExpired Quit = "expired"
)

// Error is the reason with what it is the reason of.
func (q Quit) Error() string { return "the session has ended: " + string(q) }

// Transport a session was opened over. A session is worth nothing on another.
type Transport string

// The transports clients come over.
const (
	HTTP      Transport = "http" // Streamable HTTP
	SSE       Transport = "sse"  // HTTP+SSE 2024-11-05
	WebSocket Transport = "ws"
	// Modern is the transport of the sessions that are pinned to modern clients.
	Modern Transport = "modern"
)

// Session is the record of one client session; all that has to be known to serve
// its next message on any instance.
type Session struct {
	ID         ID
	Rev        int64 // set by the store: Save is refused unless it is the stored one
	Server     string
	Digest     string // of the server's configuration when the session began
	Tenant     string
	Principal  string // who opened it; every verb is refused to anybody else
	Props      []byte `json:",omitempty"` // what was last known of who opened it; see Identity
	Transport  Transport
	State      State
	Quit       Quit
	Version    string          // protocol version, negotiated; before that the requested one
	Init       json.RawMessage // the client's own initialize params
	Level      string          // last logging/setLevel, "" for none
	Subscribed []string        // resource URIs, in the order of subscription
	ServerInfo json.RawMessage `json:",omitempty"` // Modern only: what the server calls itself, nil until that is known
	Params     json.RawMessage `json:",omitempty"` // Modern only: which arguments of tools headers repeat; see Host.Learn
	Created    time.Time
	Used       time.Time // last message, to within half of the life: touched lazily
	Expires    time.Time
	Served     bool        // a box has done more for it than to answer lists: its process may remember something
	Pushes     bool        // the server may send what belongs to no request
	Primary    Lease       // which GET gets the common stream
	Delivered  Index       // highest index of the common stream that a client reported
	Standby    []Lease     `json:"Shadows"` // GETs that wait behind the primary, oldest first; see Limits.Standby
	Conns      []string    // open WebSocket connections as far as known, newest last
	Pushed     []Cursor    // streams whose own connection has gone; see Cursor
	Pusher     Lease       // who is pushing what is behind Pushed
	Answers    AnswerCount `json:",omitzero"`
}

// AnswerCount counts what a client has answered, while it is kept.
type AnswerCount struct {
	Bytes int
	Since time.Time
}

// Clone is a copy that has nothing in common with the session.
func (s Session) Clone() Session {
	s.Props, s.Init = bytes.Clone(s.Props), bytes.Clone(s.Init)
	s.ServerInfo, s.Params = bytes.Clone(s.ServerInfo), bytes.Clone(s.Params)
	s.Subscribed, s.Conns = slices.Clone(s.Subscribed), slices.Clone(s.Conns)
	s.Standby, s.Pushed = slices.Clone(s.Standby), slices.Clone(s.Pushed)
	return s
}

// Cursor says how far a stream of a WebSocket session was pushed to its client,
// once the connection its request came over has gone. What is behind it stands in
// the log and is owed to the next connection of the session.
//
// While it is Live, nothing is owed: events go straight to that connection, and Index
// is only how far they had got when somebody noted it.
type Cursor struct {
	Stream StreamID
	Index  Index     // the last event that was pushed
	Final  bool      // it was the last of its stream
	Live   bool      `json:",omitempty"`
	Since  time.Time `json:",omitzero"` // while Live: since when nobody knows whether the batch behind Index was pushed
}

// Owes reports whether events may wait in the log for the session's next connection.
func (s *Session) Owes() bool {
	return slices.ContainsFunc(s.Pushed, func(c Cursor) bool { return !c.Settled() })
}

// Settled reports whether nothing behind the cursor is owed: its stream has ended, or
// its events go straight to the connection.
func (c Cursor) Settled() bool { return c.Final || c.Live }

// Connection is the record of one WebSocket connection of a client. It is never
// changed, so that an instance may remember it.
type Connection struct {
	ID        string // API Gateway's name for it
	Session   ID
	Server    string
	Tenant    string
	Principal string
	EventIDs  bool // the client wants to be told event ids
	// Credential is what the client proved itself with; see Identity.
	Credential string `json:",omitempty"`
	Expires    time.Time
}

// Lease is the right of one GET to the common stream, until it plans to close.
// Nobody releases a lease: the holder closes before Until.
type Lease struct {
	Nonce string
	Until time.Time
}

// BoxID names a box: one tenant's place for one server. It is computed, never
// looked up, so that a session and its box are read in one round trip.
type BoxID string

// BoxFor is the box in which a tenant's processes of a server run.
func BoxFor(tenant, server string) BoxID { return BoxID(tenant + "/" + server) }

// BoxState of a box.
type BoxState string

// The states of a box. The zero value of Box is asleep at generation 0.
const (
	Asleep   BoxState = ""
	Starting BoxState = "starting"
	Awake    BoxState = "awake"
)

// Box is the record of a box. Every change is a compare-and-swap on Rev.
type Box struct {
	ID     BoxID
	Rev    int64
	Tenant string
	Server string
	State  BoxState
	// Gen goes up by one at every wake lease, every lease takeover and every
	// hello after a bye that was processed.
	Gen Generation
	// Lost is the highest generation that did not end by its own bye.
	Lost Generation
	// Worked is the highest generation that was given more to do than to answer lists,
	// or of which that is not known.
	Worked Generation `json:",omitempty"`
	Told   Told       `json:",omitzero"`
	Runner string     // random id of the runner; kept when asleep after a bye
	Task   string     // the fleet's name for it
	Conn   string     // WebSocket connection of the runner, only while awake
	Link   int64      // the runner's own counter of its hellos
	// Only while starting: who holds the wake lease, until when, which attempt,
	// and the hash of the one-time token the runner must bring.
	Owner     string
	Until     time.Time
	Attempt   int
	TokenHash string
	Failure   Failure // why the last generation was lost, or the last start failed
	// Era is what the server was found to speak, "" while that is not known: what the
	// next runner is told to begin with.
	Era     string `json:",omitempty"`
	Changed time.Time
}

// Told are the highest generations in which a process has said that a list has changed.
// What one before them listed may not be so any more.
type Told struct {
	Tools, Prompts, Resources Generation `json:",omitempty"`
}

// Failure is what is known of the end of a box that did not say bye.
type Failure struct {
	Phase  string // one of the error phases of package box
	Detail string // fit for a client
	Exit   int    // exit code of the runner, if it exited
	Signal string // what killed it, if something did
	At     time.Time
}

// Over says that generation g will never execute anything again. Over is for
// ever.
func (b Box) Over(g Generation) bool { return b.Gen > g || b.Gen == g && b.State == Asleep }

// Clean says that generation g ended by its own bye: what was sent to it and has
// left no trace in the log was not executed.
func (b Box) Clean(g Generation) bool { return b.Over(g) && g > b.Lost }

// Address says where the end of a request goes. It travels sealed in a ticket,
// and in the clear in an Item.
type Address struct {
	Session   ID                `json:"s"`
	Stream    StreamID          `json:"d"`           // also the deliver id
	Requests  []json.RawMessage `json:"r,omitempty"` // ids that are owed a response, as the client wrote them
	Conn      string            `json:"c,omitempty"` // WebSocket connection of the client, if that is where events go too
	EventIDs  bool              `json:"e,omitempty"` // and each event's id
	Principal string            `json:"p,omitempty"`
	Digest    string            `json:"h,omitempty"` // names the handshake record; see RecordFor
	List      string            `json:"l,omitempty"` // the part of it that the answer is for, "" for none
	Box       BoxID             `json:"b"`
	Again     bool              `json:"a,omitempty"` // the session was Served before: a process started for this has lost something
	Init      bool              `json:"i,omitempty"` // the request is initialize: whoever appends its end settles the session
	LegacySSE bool              `json:"o,omitempty"` // events are also copied to the legacy SSE stream of the session (HTTP+SSE)
	Trace     string            `json:"t,omitempty"` // names the client's request in all logs; see WithTrace
}

// Pushed says that the client of this request does not come for its events: they
// are sent to its connection, or copied to its legacy SSE stream.
func (a Address) Pushed() bool { return a.Conn != "" || a.LegacySSE }

// Looks says that the request asks for a list or is an initialize: a process says
// afterwards what it would have said before.
func (a Address) Looks() bool { return a.List != "" || a.Init }

// ItemState of an in-flight item.
type ItemState string

// An item waits in the inbox, was taken by one generation, or waits for its client (see
// suspend.go). A leftover is no message: its session has ended, and what a box has kept
// of it is to be removed.
const (
	Waiting   ItemState = "waiting"
	Taken     ItemState = "taken"
	Suspended ItemState = "suspended"
	Leftover  ItemState = "leftover"
)

// Item is the durable trace of a message on its way to a box: an inbox entry
// while Waiting, the mark of who owes the end once Taken, and of what is to be done
// once its client has answered while Suspended.
type Item struct {
	Box      BoxID
	ID       StreamID
	State    ItemState
	Gen      Generation // for Taken and Suspended: which generation took it
	Round    int        // how often it was suspended
	Address  Address
	Raw      []byte    // the message while it waits, for a box or for answers; nil on an item that was put as Taken
	NotAfter time.Time // a waiting item older than this is never claimed, a suspended one ends
	Created  time.Time // when it came into the state of Waiting or Suspended

	Questions []Question // while Suspended: what its client is asked
	Base      Index      // index of the last event before this round; 0 in the first
}

// Batch is some events of one stream, written in one go.
type Batch struct {
	Session ID
	Stream  StreamID
	First   Index // index of Events[0]; the rest follow on
	Gen     Generation
	Seq     int64         // the runner's batch number in its generation; 0 for an end written by a function
	Final   bool          // the last event is the last of its stream
	Retry   time.Duration // of the last event; see Event
	Events  [][]byte
	Expires time.Time
	Once    bool // Append says Duplicate, and not nil, if the batch is there already; it is not stored
}

// Tail is what the last batch of a stream says. The zero value is an empty
// stream.
type Tail struct {
	Last  Index
	Gen   Generation
	Seq   int64
	Final bool
}

// Event is one server message in a stream's log.
type Event struct {
	Index Index
	Raw   []byte // one line of JSON
	Final bool   // the last of its stream
	// Retry, if it is not 0, sends the client away: the response ends after this
	// event and the client comes back after so long (SEP-1699). Raw may then be
	// empty, for an event that says nothing else.
	Retry time.Duration
}

// Page is what a read of a stream found strictly after a cursor, in order.
type Page struct {
	Events []Event
	More   bool // there is more behind the last event of this page
	Gap    bool // events between the cursor and the first of this page are gone
}

// Final says that the page holds the end of its stream.
func (p Page) Final() bool { return len(p.Events) > 0 && p.Events[len(p.Events)-1].Final }

// Answer is a client's response to a server's question.
type Answer struct {
	Session  ID
	Question string // the client-visible id of the server's request
	Raw      []byte // the whole JSON-RPC response
	Expires  time.Time
}

// Handshake is a part of a handshake record: what a server answered to initialize,
// by the version the client requested, or what it lists.
type Handshake struct {
	Digest  string // which record; see RecordFor
	Version string // which part: a protocol version, or the name of a list
	Result  json.RawMessage
	Taken   time.Time
	Expires time.Time // zero for never
}

// RecordFor names the handshake record of a server: by the tenant too, because what
// is in it was said in a box, and a box is its tenant's.
func RecordFor(tenant, digest string) string { return tenant + "/" + digest }

// HandshakeLife is how long a part of a handshake record is kept that nobody has
// written again: each start of a process writes what it answers to initialize, and the
// first list that is asked for behind it.
const HandshakeLife = 30 * 24 * time.Hour

// Part is a piece of a relay frame that was too big for one message.
type Part struct {
	Box     BoxID
	Frame   string // the runner's name for the whole frame, unique for ever
	N       int    // 0, 1, ...
	Data    []byte
	Expires time.Time
}
