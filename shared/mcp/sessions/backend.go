package sessions

import (
	"cmp"
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Server is what this package needs to know about a configured server.
type Server struct {
	Name   string
	Digest string // changes with everything that changes how the server behaves
	Record bool   // Manager may answer initialize, discover and lists from the handshake record
	// OwnLists excludes lists from Record: Manager asks the box each time.
	OwnLists bool
	// SameLists promises that lists of tools and templates depend only on the configuration
	// and the client's capabilities. So all principals of a tenant share them.
	SameLists bool
	// Anonymous promises that each session has a process of its own, which knows nothing of
	// its principal. So a process that has only answered lists gives the same to all
	// principals of a tenant.
	Anonymous bool
	// Spreads allows sessions of one tenant to be in several boxes: they share nothing.
	Spreads bool
	Tasks   TaskMode
	// Remembers means that a process keeps its memory while its box sleeps. So an answer to what
	// it has asked wakes the box.
	Remembers bool
	// InPlace means that the server has no box: the function that gets a message executes
	// it.
	InPlace bool
	// Preparing means that the server is being installed for the first time. Where the record
	// knows nothing yet, Manager answers initialize at once, and lists are empty; see
	// [Manager.Prepared].
	Preparing bool
	// Tools are the tools that the server offers to any caller. The caller of Manager
	// refuses calls of other tools. [Caller].Tools, which it sets, is a part of Tools.
	Tools storage.ToolFilter
	// Pin, if not nil, says that clients see only what was accepted of the server's tools.
	Pin *storage.Pin
	// Providers are the third parties at which the server acts for its caller.
	Providers []string
}

// Delivery is one client message, or a batch, on its way to a server.
type Delivery struct {
	storage.Address                 // Stream is the deliver id; each of Requests still needs its end
	Client          storage.Session // a fresh process gets its Init, Level and Subscribed
	Server          string
	Raw             []byte   // one message or a batch array, as the client wrote it
	Tools           []string // name of the tool of each tools/call in Raw
	Needs           bool     // a message in Raw needs everything that the server wants at third parties
	// Secrets are the caller's keys and tokens at third parties, by provider. The process
	// of the message gets it.
	Secrets map[string]storage.Secret
	Wakes   bool // although it has no requests: the process that it is for may sleep with its memory
	Brief   bool // the caller waits only until the request is accepted, so a trace is wanted soon

	once *once // the key of the call; nil: it has none
}

// Backend executes the messages of clients: behind the relay in a box, or in this
// function. Implementations are safe for concurrent use.
type Backend interface {
	// Deliver sends a message to its executor. box is the record that was read with the
	// session. When Deliver returns, the message is on its way but not accepted yet: the
	// caller goes on with the Tracker. A delivery without requests has no Tracker (nil).
	// Such a delivery was sent once, or dropped because the box is not awake. One that Wakes
	// was sent once, or there is an error.
	//
	// Errors: Unavailable (the outcome is unknown), Busy, TooLarge.
	Deliver(ctx context.Context, d Delivery, box storage.Box) (Tracker, error)
	// Track returns the Tracker of a request that was accepted earlier, for a client that
	// comes back for it. Errors: NotFound if no item of this stream is open.
	Track(ctx context.Context, s storage.Session, stream storage.StreamID) (Tracker, error)
	// Answer passes on a client's response that the store already has. It may be lost on
	// the way: a box asks for answers when it reconnects, and the sweep looks for the
	// answers of suspended calls. The box may be asleep if the question belongs to a
	// suspended call; see [storage.Suspends]. No store has the answer to a question that is
	// forwarded; see [storage.Forwards]. After an error the client answers such a question
	// again.
	Answer(ctx context.Context, a storage.Answer, box storage.Box) error
	// End tells the box that a session has ended, and ends the session's suspended calls.
	// The message to the box may be lost.
	End(ctx context.Context, s storage.Session, box storage.Box) error
}

// Tracker follows one request to its end, in steps. One goroutine uses it.
type Tracker interface {
	// Check does what is due now. It looks for a sign of life, delivers again, or wakes a
	// box. If the box of a request is lost, it writes the end of the request to the log. An
	// error is Unavailable; Check may be called again after it.
	Check(ctx context.Context) (Status, error)
}

// Status is what a Tracker knows of its request.
type Status struct {
	Accepted bool      // a durable trace exists, so the caller may tell the client
	Next     time.Time // when to call Check again
}

// InlineTracker is a Tracker whose own function executes the request. Keep the response
// open and use Watch: this process writes the events, so polling the store is
// unnecessary.
type InlineTracker interface {
	// Held reports whether the request is still executed here.
	Held() bool
	// Watch is [storage.Log.Wait] for a request that this function executes. It returns
	// the events behind the index after, or an empty page at the time until. ok is false
	// if only the store has those events: the request has ended or halted, or another
	// function ended it.
	Watch(ctx context.Context, after storage.Index, until time.Time) (page storage.Page, ok bool, err error)
}

// Handover is a Tracker that passes its request to a box. The box may execute the request
// although no sign of life has arrived.
type Handover interface {
	// Handed reports whether a box may have the request.
	Handed() bool
	// GiveUp ends a request that was Handed and has no durable trace. If it returns nil,
	// either the log has the end, or a trace was there after all. A box that has not begun
	// to execute the request then never will. After an error neither is known.
	GiveUp(ctx context.Context) error
}

// Limits of sessions. [New] replaces zero values by the defaults.
type Limits struct {
	Life        time.Duration // how long a session lives after its last message; 7 days
	InitTimeout time.Duration // the time from the opening of a session to notifications/initialized; 60 s
	StartTime   time.Duration // how long a cold server may take to answer initialize; 300 s
	EventAge    time.Duration // how long events and answers are kept; at most and by default storage.EventAge
	AcceptBy    time.Duration // the time after which a function stops waiting for a sign of life; 25 s
	Hold        time.Duration // how long a GET on the standalone stream, or a poll, is held open; 25 s
	Since       time.Time     // leases from before this time are free: their holders have ended; zero: not known
	Pace        time.Duration // the shortest retry that a client gets; all others are multiples; 1 s
	Standby     int           // how many GETs of one session may wait for the lease of its primary; 32
}

func (l Limits) withDefaults() Limits {
	l.Life = cmp.Or(l.Life, 7*24*time.Hour)
	l.InitTimeout = cmp.Or(l.InitTimeout, time.Minute)
	l.StartTime = cmp.Or(l.StartTime, 5*time.Minute)
	l.EventAge = cmp.Or(l.EventAge, storage.EventAge)
	l.AcceptBy = cmp.Or(l.AcceptBy, 25*time.Second)
	l.Hold = cmp.Or(l.Hold, 25*time.Second)
	l.Pace = cmp.Or(l.Pace, time.Second)
	l.Standby = cmp.Or(l.Standby, 32)
	return l
}

// TaskMode says which calls of a server become tasks, for clients that support tasks.
type TaskMode string

// Which calls become tasks.
const (
	TasksAuto   TaskMode = ""       // calls that take longer than a response may be held
	TasksAlways TaskMode = "always" // all calls that do not end at once
	TasksOff    TaskMode = "off"    // none; the server does not offer tasks
)
