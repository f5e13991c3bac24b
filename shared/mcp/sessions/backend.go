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
	Digest string // a hash of the server's definition
	Record bool   // Manager may answer initialize, server/discover and lists from the handshake record
	// OwnLists makes Manager ask the box for lists each time, although Record is set.
	OwnLists bool
	// SameLists promises that lists of tools and templates depend only on the configuration
	// and the client's capabilities. All principals of a tenant share these lists.
	SameLists bool
	// Anonymous promises that each session has a process of its own, and that the process does not
	// know the principal. A process that has only answered lists therefore has the same lists for
	// all principals of a tenant.
	Anonymous bool
	// Spreads says that the sessions of one tenant may be in several boxes: they share no process and no
	// workspace.
	Spreads bool
	Tasks   TaskMode
	// Remembers means that a process keeps its memory while its box sleeps. The client's answer to
	// a question therefore wakes the box.
	Remembers bool
	// InPlace means that the server has no box: the instance that gets a message executes
	// it.
	InPlace bool
	// Preparing means that the server is being installed for the first time. Until the server has
	// answered once, Manager itself answers initialize, and returns empty lists of tools, prompts
	// and resources. See [Manager.Prepared].
	Preparing bool
	// Tools are the tools that the server offers to any caller. [Caller.Tools] allows no others.
	Tools storage.ToolFilter
	// Pin, if not nil, says that clients see each tool of the server as it was when it was
	// accepted. Clients can neither see nor call a tool that was not accepted.
	Pin *storage.Pin
	// Providers are the third parties, by their names in the servers file, at which the server
	// acts for its caller.
	Providers []string
}

// Delivery is one client message, or a batch, on its way to a server.
type Delivery struct {
	storage.Address                 // where the responses to the requests in Raw go
	Client          storage.Session // the session of the client; a fresh process gets its Init, Level and Subscribed
	Server          string
	Raw             []byte   // one message or a batch array, as the client wrote it
	Tools           []string // name of the tool of each tools/call in Raw
	Needs           bool     // a message in Raw needs the secrets of all [Server.Providers]
	// Secrets are the caller's keys and tokens at third parties, by provider.
	Secrets map[string]storage.Secret
	Wakes   bool // Raw is a response to a question, and wakes the box; see [Server.Remembers]
	Brief   bool // a client waits until the request is accepted, so a box should confirm it soon

	once *once // the idempotency key of the call, nil for none
}

// Backend executes the messages of clients: in a box, which it reaches through the relay, or in the
// instance that calls it. Implementations are safe for concurrent use.
type Backend interface {
	// Deliver sends a message to the box that executes it, or executes it here. box is the record
	// that was read with the session. When Deliver returns, the message is sent but not accepted
	// yet. For a delivery without requests the Tracker is nil: Deliver has sent the message once,
	// or dropped it because the box is not awake. A delivery with Wakes is never dropped without
	// an error.
	//
	// Errors: Unavailable (the outcome is unknown), Busy, TooLarge.
	Deliver(ctx context.Context, d Delivery, box storage.Box) (Tracker, error)
	// Track returns the Tracker of a request that was accepted earlier, for a client that comes back for
	// it. Errors: NotFound if the store has no open [storage.Item] of this stream.
	Track(ctx context.Context, s storage.Session, stream storage.StreamID) (Tracker, error)
	// Answer passes on a client's response to a question. The response may be lost on the way without an
	// error. The box may be asleep if the question belongs to a suspended call; see [storage.Suspends].
	// The store has the response already, except for a server without a box ([storage.Forwards]): after
	// an error the client must send that one again.
	Answer(ctx context.Context, a storage.Answer, box storage.Box) error
	// End tells the box that a session has ended, and ends the session's suspended calls.
	// The message to the box may be lost without an error.
	End(ctx context.Context, s storage.Session, box storage.Box) error
}

// Tracker follows one request to its end, in steps. One goroutine uses it.
type Tracker interface {
	// Check does the next step: it looks whether the box is alive, sends the request again, or wakes
	// a box. If the box that has the request is lost, Check writes the end of the request to the log.
	// Errors: Unavailable; Check may be called again.
	Check(ctx context.Context) (Status, error)
}

// Status is what a Tracker knows of its request.
type Status struct {
	Accepted bool      // the store has a trace of the request, so the client may be told that it is accepted
	Next     time.Time // when to call Check again
}

// InlineTracker is an optional interface of a Tracker whose request is executed by the instance
// that uses the Tracker. The instance must keep the client's response open until Held is false. It
// reads the events with Watch.
type InlineTracker interface {
	// Held reports whether this instance still executes the request.
	Held() bool
	// Watch is [storage.Log.Wait] for a request that this instance executes. It returns the events after
	// an index, or an empty page at the deadline. If ok is false, this instance does not have the
	// events, and the caller reads the log.
	Watch(ctx context.Context, after storage.Index, deadline time.Time) (page storage.Page, ok bool, err error)
}

// Handover is an optional interface of a Tracker that sends its request to a box.
type Handover interface {
	// Handed reports whether a box may have the request, although it has not confirmed that.
	Handed() bool
	// GiveUp ends a request for which Handed is true and the store has no trace: the log gets the end
	// of the request, and no box begins to execute it any more. GiveUp also returns nil if the store has
	// got a trace of the request meanwhile. After an error the outcome is not known.
	GiveUp(ctx context.Context) error
}

// Limits of sessions. [New] replaces zero values by the defaults.
type Limits struct {
	Life        time.Duration // a session ends after half of it to all of it without a message; 7 days
	InitTimeout time.Duration // how long a session lives until notifications/initialized comes; 60 s
	EventAge    time.Duration // how long events and answers are kept; storage.EventAge, which is also the most
	Hold        time.Duration // how long a response that waits for events is held open; 25 s
	Since       time.Time     // when this program started; earlier leases count as free. Zero if another program may use the store
}

const (
	// Pace is the shortest time after which Dormouse tells a client to come back.
	Pace = time.Second
	// acceptBy is how long an instance waits until a box confirms that it has a request.
	acceptBy = 25 * time.Second
	// startTime is how much longer a session lives if a server must be started for its initialize.
	startTime = 5 * time.Minute
)

func (l Limits) withDefaults() Limits {
	l.Life = cmp.Or(l.Life, 7*24*time.Hour)
	l.InitTimeout = cmp.Or(l.InitTimeout, time.Minute)
	l.EventAge = cmp.Or(l.EventAge, storage.EventAge)
	l.Hold = cmp.Or(l.Hold, 25*time.Second)
	return l
}

// TaskMode says which calls of a server become tasks, for clients that support tasks.
type TaskMode string

// Which calls become tasks.
const (
	TasksAuto   TaskMode = ""       // calls that outlast the longest response
	TasksAlways TaskMode = "always" // all calls that take longer than a moment
	TasksOff    TaskMode = "off"    // none; the server does not offer tasks
)
