package storage

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"
)

// State is where a session is in its life.
type State string

// The states of a session, in order. A session of Streamable HTTP begins as Created, one
// of a WebSocket or an SSE stream as Opened.
const (
	Opened  State = "opened"  // there is a connection; the client has not sent initialize
	Created State = "created" // the client has sent initialize
	Ready   State = "ready"   // the client has sent notifications/initialized
	Ended   State = "ended"   // the session accepts nothing more; see Quit
)

// Quit is why a session ended. The session keeps it for operators until its row expires. Clients
// get only NotFound. A Quit is an error, so that it can be the cause of the NotFound.
type Quit string

// The reasons for the end of a session.
const (
	QuitNone     Quit = ""
	QuitClient   Quit = "client_terminated"   // the client sent DELETE
	QuitService  Quit = "service_terminated"  // an operator ended it, or removed its server
	QuitNoInit   Quit = "expected_initialize" // initialize failed
	QuitCanceled Quit = "cancelled"           // initialize was cancelled
	// QuitExpired is never stored. A store returns it as the cause of NotFound for a
	// session that has expired and whose row is still there.
	QuitExpired Quit = "expired"
)

// Error returns a sentence with the reason.
func (q Quit) Error() string { return "the session has ended: " + string(q) }

// Transport is how the client of a session connects. A session cannot be used over
// another transport than its own.
type Transport string

// Values of [Transport].
const (
	HTTP      Transport = "http" // Streamable HTTP (MCP 2025-03-26 and later)
	SSE       Transport = "sse"  // HTTP+SSE (MCP 2024-11-05)
	WebSocket Transport = "ws"
	// Modern is the transport of the sessions that stand for stateless clients (MCP 2026-07-28).
	// There is one session for each tenant, principal, server and kind of client.
	Modern Transport = "modern"
)

// Session is the record of one client session. A driver writes and compares it as one row.
type Session struct {
	ID         ID
	Rev        int64 // set by the store; Save fails unless it is the stored one
	Server     string
	Digest     string // of the server definition that served the session's last request
	Tenant     string
	Principal  string // the principal that opened the session; no other may use it
	Props      []byte `json:",omitempty"` // latest Identity.Props of the principal
	Transport  Transport
	State      State
	Quit       Quit
	Version    string          // negotiated protocol version; before that, the requested one
	Init       json.RawMessage // the client's initialize params; at most 64 KiB
	Level      string          // of the last logging/setLevel, "" for none
	Subscribed []string        // resource URIs in the order of subscription; at most 500, and at most 128 KiB in all
	ServerInfo json.RawMessage `json:",omitempty"` // Modern only: the server's serverInfo, nil if unknown
	Params     json.RawMessage `json:",omitempty"` // Modern only: what sessions.Manager.Learn has kept
	Created    time.Time
	Used       time.Time // when a message last moved Expires; one does so only after half of the life
	Expires    time.Time
	Served     bool        // a process has done more for the session than answer requests for lists, so it may have state
	Pushes     bool        // the server may send messages outside of requests
	Primary    Lease       // the HTTP response that gets the events of the standalone stream, or over HTTP+SSE those of LegacySSE
	Delivered  Index       // the last event of Primary's stream that the client has named as Last-Event-ID; over HTTP+SSE, the last one sent
	Standby    []Lease     `json:"Shadows"` // the GETs that wait for Primary, oldest first
	Conns      []string    // open WebSocket connections as far as known, newest last
	Pushed     []Cursor    // the streams with events that may not have been pushed to the client yet
	Pusher     Lease       // the instance that pushes the events after the cursors in Pushed
	Answers    AnswerCount `json:",omitzero"`
	Members    []string    `json:",omitempty"` // of a session with a group: the servers with which it has opened sessions
	Group      ID          `json:",omitempty"` // the session with a group that has opened this one; "" for none
	Relisted   time.Time   `json:",omitzero"`  // the [Box.Relisted] of the last change that the client was told of
	Later      Later       `json:"-"`
}

// AnswerCount is how much the client of a session has answered, for a limit on stored answers.
type AnswerCount struct {
	Bytes int       // of the answers since counting began
	Since time.Time // when counting began
}

// Box returns the ID of the box of the session.
func (s *Session) Box() BoxID { return BoxFor(s.Tenant, s.Server).Numbered(s.ID.Box()) }

// Record returns the name of the handshake record of the session's box; see [RecordIn].
func (s *Session) Record() string { return RecordIn(s.Tenant, s.Digest, s.ID) }

// Clone returns a copy that shares no memory with s.
func (s Session) Clone() Session {
	s.Props, s.Init = bytes.Clone(s.Props), bytes.Clone(s.Init)
	s.ServerInfo, s.Params = bytes.Clone(s.ServerInfo), bytes.Clone(s.Params)
	s.Subscribed, s.Conns = slices.Clone(s.Subscribed), slices.Clone(s.Conns)
	s.Members = slices.Clone(s.Members)
	s.Standby, s.Pushed = slices.Clone(s.Standby), slices.Clone(s.Pushed)
	return s
}

// Owes reports whether events may wait in the log for the session's next connection.
func (s *Session) Owes() bool {
	return slices.ContainsFunc(s.Pushed, func(c Cursor) bool { return !c.Settled() })
}

// Cursor says how far a stream was pushed to the client of a WebSocket session. A stream gets a Cursor
// when the connection of its request was found closed. Unless Live is set, the events after Index are
// owed: the session's next connection must get them.
//
// While Live is set, the instance that appends an event also posts it to the connection, and Index may
// be lower than what was posted.
type Cursor struct {
	Stream StreamID
	Index  Index // the last event that was pushed
	Final  bool  // the event at Index is the last of its stream
	Live   bool  `json:",omitempty"`
	// Since is when an instance found, while Live, that the batch after Index was perhaps not posted. It
	// is zero if no batch is in doubt.
	Since time.Time `json:",omitzero"`
}

// Settled reports whether the session's next connection need not get events of the stream.
func (c Cursor) Settled() bool { return c.Final || c.Live }

// Connection is the record of one WebSocket connection of a client. It never changes, so
// callers may cache it.
type Connection struct {
	ID         string // as API Gateway names it
	Session    ID
	Server     string
	Tenant     string
	Principal  string
	EventIDs   bool     // the client asked for event ids
	Credential string   `json:",omitempty"` // the client's Identity.Credential
	Scopes     []string `json:",omitempty"`
	Scoped     bool     `json:",omitempty"` // the client's Identity.Scoped
	ToolRules  []string `json:",omitempty"` // the client's Identity.ToolRules
	Expires    time.Time
	Group      *GroupConnection `json:",omitempty"` // of a connection to a group; nil for one to a server
}

// Identity returns what was known of the client when it connected, without Props.
func (c Connection) Identity() Identity {
	who := Identity{Tenant: c.Tenant, Principal: c.Principal, Credential: c.Credential, Scopes: c.Scopes, Scoped: c.Scoped, ToolRules: c.ToolRules}
	if c.Group != nil {
		who.Members = c.Group.Members
	}
	return who
}

// GroupConnection is what a client has asked for with its connection to a group of servers,
// and what it may use there. It is not modified.
type GroupConnection struct {
	Plain   bool                `json:",omitempty"` // the name of a tool, prompt or resource that only one server has gets no prefix
	Search  bool                `json:",omitempty"` // the client gets tools that search, in place of the tools
	Members map[string][]string // the client's Identity.Members
}

// Lease gives its holder a right until a time, such as that of one GET to read the standalone stream. A
// holder need not give its lease back, and must not use the right after Until.
type Lease struct {
	Nonce string // names the holder
	Until time.Time
}

// Address says where the events of a request go. An [Item] has the Address in plain. A ticket, with
// which a box sends events, has the Address encrypted. No JSON name here may be g or x, which package
// relayserver adds in a ticket.
type Address struct {
	Session   ID                `json:"s"`
	Stream    StreamID          `json:"d"`           // also identifies the delivery
	Requests  []json.RawMessage `json:"r,omitempty"` // ids that need a response, as the client wrote them
	Conn      string            `json:"c,omitempty"` // the client's WebSocket connection, if events are pushed to it
	EventIDs  bool              `json:"e,omitempty"` // push each event's id, too
	Digest    string            `json:"h,omitempty"` // names the handshake record; see [RecordFor]
	List      string            `json:"l,omitempty"` // the part of that record in which the answer is kept, "" for none
	Box       BoxID             `json:"b"`
	Again     bool              `json:"a,omitempty"`  // a process has served the session before; a fresh process lacks its state
	Moved     bool              `json:"m,omitempty"`  // the server's lists may have changed since the session's last request
	Held      bool              `json:"ht,omitempty"` // the server has a [Pin], so Dormouse itself announces changed tools
	Init      bool              `json:"i,omitempty"`  // the request is initialize; its outcome decides whether the session goes on
	LegacySSE bool              `json:"o,omitempty"`  // copy events to the stream [LegacySSE]
	Trace     string            `json:"t,omitempty"`  // names the client's request in all logs; see [WithTrace]
	Shown     *Shown            `json:"w,omitempty"`  // which tools the client sees in lists; nil: all
	Through   *Through          `json:"u,omitempty"`  // the client's group of servers, if Conn is a connection to one
}

// Through describes a session with one server of a group, as the client of the group sees it. It is not
// modified.
type Through struct {
	Group  ID     `json:"s"` // the session with the group
	Server string `json:"m"`
	Plain  bool   `json:"p,omitempty"` // resources keep their URIs
}

// Through returns how the client of a connection to a group sees the session. It returns nil if the
// connection is to a single server. The argument is the Group of the [Connection].
func (s *Session) Through(group *GroupConnection) *Through {
	if s.Group == "" || group == nil {
		return nil
	}
	return &Through{Group: s.Group, Server: s.Server, Plain: group.Plain}
}

// Shown says which tools a client sees in the answers to some of its requests. It is not
// modified.
type Shown struct {
	Tools ToolFilter        `json:"t"`
	Lists []json.RawMessage `json:"l"`          // ids of the requests for lists of tools, as in Address.Requests
	Pin   *Pin              `json:"p,omitzero"` // of the server, nil for none
	// Greets is true if the request is an initialize.
	Greets bool `json:"g,omitempty"`
}

// Pin names a server whose tools are pinned: its clients see each tool as it was when an operator
// accepted it, or when the server first listed its tools. A Pin is not modified.
type Pin struct {
	Server string `json:"s"` // the server's name in the servers file
	Source string `json:"o"` // what the server runs, without a version; if this changes, an operator must accept the tools anew
}

// Pushed reports whether events are sent to the client, over its connection or its
// LegacySSE stream. Other clients fetch them.
func (a Address) Pushed() bool { return a.Conn != "" || a.LegacySSE }

// Looks reports whether the request is an initialize or asks for a list. Requests of these kinds leave
// no state in the process.
func (a Address) Looks() bool { return a.List != "" || a.Init }

// Batch is a run of consecutive events of one stream that are written together.
type Batch struct {
	Session ID
	Stream  StreamID
	First   Index // the index of Events[0]; the other events follow
	Gen     Generation
	Seq     int64         // the runner's batch number in its generation; 0 for a batch of an instance
	Final   bool          // the last event is the last of the stream
	Retry   time.Duration // Event.Retry of the last event
	Events  [][]byte      // 1 to MaxBatchEvents of one line each, at most MaxBatchBytes together
	Expires time.Time
	// Once makes Append return Duplicate, and not nil, if the batch is there already. The store
	// does not keep Once.
	Once bool
}

// Tail describes the last batch of a stream, without its events. The zero value stands for
// an empty stream.
type Tail struct {
	Last  Index
	Gen   Generation
	Seq   int64
	Final bool
}

// Event is one message of a server in the log.
type Event struct {
	Index Index
	Raw   []byte // one line of JSON; may be empty if Retry is set
	Final bool   // the last event of its stream
	// Retry, if not 0, ends the client's response after this event. The client comes
	// back after that time (SEP-1699).
	Retry time.Duration
}

// Page is the result of reading a stream from a cursor: events in order of index.
type Page struct {
	Events []Event
	More   bool // the stream has events after the last of the page
	Gap    bool // events between the cursor and the first of the page are gone
}

// Final reports whether the page has the end of its stream.
func (p Page) Final() bool { return len(p.Events) > 0 && p.Events[len(p.Events)-1].Final }

// Answer is a client's response to a question of a server.
type Answer struct {
	Session  ID
	Question string // the id under which the client knows the question
	Raw      []byte // the whole JSON-RPC response
	Expires  time.Time
}

// Handshake is a part of a handshake record: a server's answer to initialize or to a
// request for a list.
type Handshake struct {
	Digest  string          // names the record; see RecordFor
	Version string          // which part of the record this is: a protocol version, or the name of a list
	Result  json.RawMessage // of the server's response
	Taken   time.Time       // when the server gave it
	Expires time.Time
}

// RecordKey names a part of a handshake record, and the box whose state says whether the
// part is still good.
type RecordKey struct {
	Digest, Version string // those of the [Handshake]
	Box             BoxID
}

// Recorded is what the store has for a [RecordKey].
type Recorded struct {
	Handshake Handshake // zero: there is none, or it has expired
	Box       Box
}

// RecordFor returns the name of a server's handshake record for box 0. The tenant is part of
// it, because tenants have boxes of their own.
func RecordFor(tenant, digest string) string { return tenant + "/" + digest }

// RecordIn returns the name of a server's handshake record for the box of a session. Each
// box has a record of its own, because generations of different boxes cannot be compared.
func RecordIn(tenant, digest string, id ID) string {
	return string(BoxID(RecordFor(tenant, digest)).Numbered(id.Box()))
}

// Part is a piece of a relay frame that is too long for one message.
type Part struct {
	Box     BoxID
	Frame   string // the runner's unique name of the whole frame
	N       int    // number of the piece: 0, 1, ...
	Data    []byte // at most MaxPart bytes
	Expires time.Time
}
