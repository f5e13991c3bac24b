package host

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Server is what the core has to know of a configured server.
type Server struct {
	Name   string
	Digest string // of everything that changes how it behaves
	Record bool   // initialize, discover and lists may be answered from the handshake record
	// OwnLists: lists may not; the box is asked for them each time.
	OwnLists bool
	// SameLists: lists may depend on nothing but the configuration and what a client says
	// of itself, so that all principals of a tenant get the same tools and templates.
	SameLists bool
	Tasks     TaskMode
	// InPlace: it is executed without a box, by the function that has the message.
	InPlace bool
}

// Delivery is one client message (or batch) on its way to a server.
type Delivery struct {
	session.Address                 // Address.Stream is the deliver id; Address.Requests are owed an end
	Client          session.Session // Init, Level and Subscribed: what a fresh process has to be told
	Server          string
	Raw             []byte // one message or a batch array, as the client wrote it
	Brief           bool   // its caller only waits until it is accepted, so that a trace is wanted soon
}

// Backend executes what clients send: behind the relay in a box, or in place.
type Backend interface {
	// Deliver hands a message over. box is the record that was read with the
	// session. When it returns, the message is on its way but not yet accepted:
	// the caller holds the duty and goes on with the Tender. A delivery without
	// requests has no Tender (nil): it was handed over once, or dropped because
	// the box is not awake.
	//
	// Errors: Unavailable (nothing is known), Busy, TooLarge.
	Deliver(ctx context.Context, d Delivery, box session.Box) (Tender, error)
	// Attend takes up the duty for a request that was accepted earlier and whose
	// client polls. NotFound if nobody owes this stream an end.
	Attend(ctx context.Context, s session.Session, stream session.StreamID) (Tender, error)
	// Answer hands over a client's response that is in the store already. It may
	// be lost: a box asks for answers when it reconnects, and the answers of a
	// suspended call are looked for by the sweep. The box may be asleep if the
	// question is one of a suspended call; see [session.Suspends].
	Answer(ctx context.Context, a session.Answer, box session.Box) error
	// End tells the box that a session has ended, which may be lost, and ends its
	// suspended calls.
	End(ctx context.Context, s session.Session, box session.Box) error
}

// Tender is the duty of one function for one request, in steps. It is used by
// one goroutine.
type Tender interface {
	// Tend does what is due now: looks for a sign of life, delivers again, wakes
	// a box, ends a request whose box is lost (the end then is in the log). It
	// says whether the request has a durable trace by now, and when it wants to
	// be called again. An error is Unavailable and may be followed by another
	// Tend.
	Tend(ctx context.Context) (Duty, error)
}

// Holder is a Tender that executes the request itself, in the function that holds it.
// There is nothing to be gained from sending its client away, nor from asking the
// store for what was written here.
type Holder interface {
	// Held says that it is still executed.
	Held() bool
	// Watch is [session.Log.Wait] for what is executed here: it returns what stands in the log by
	// now, or an empty page at until. ok is false if only the store knows what is behind
	// after: the request has come to an end or a halt, or somebody else has ended it.
	Watch(ctx context.Context, after session.Index, until time.Time) (page session.Page, ok bool, err error)
}

// Handing is a Tender that hands its request to somebody else, who may execute it
// although nothing is heard of that.
type Handing interface {
	// Handed says that somebody may have the request.
	Handed() bool
	// GiveUp ends a request that was Handed and has no durable trace. When it returns nil,
	// the end is in the log, or the request has a trace after all: nobody who has not
	// begun to execute it will. After an error that is not known.
	GiveUp(ctx context.Context) error
}

// Duty is what is left of a Tender's duty.
type Duty struct {
	Accepted bool      // a durable trace exists; the client may be told
	Next     time.Time // call again then
}

// Limits of sessions. The zero value is replaced by the defaults in Host.
type Limits struct {
	Life        time.Duration // of a session after its last message; 7 days
	InitTimeout time.Duration // until notifications/initialized; 60 s
	StartTime   time.Duration // a cold server may take to answer initialize; 300 s
	EventAge    time.Duration // events and answers are kept; at most EventAge
	AcceptBy    time.Duration // a function gives up asking for a sign of life; 25 s
	Hold        time.Duration // a common stream or a poll is held; 25 s
	Pace        time.Duration // the shortest retry a client is told, which all others are multiples of; 1 s
	Shadows     int           // GETs of one session that may wait behind its primary; 32
}

func (l Limits) withDefaults() Limits {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&l.Life, 7*24*time.Hour)
	def(&l.InitTimeout, time.Minute)
	def(&l.StartTime, 5*time.Minute)
	def(&l.EventAge, session.EventAge)
	def(&l.AcceptBy, 25*time.Second)
	def(&l.Hold, 25*time.Second)
	def(&l.Pace, time.Second)
	if l.Shadows == 0 {
		l.Shadows = 32
	}
	return l
}
