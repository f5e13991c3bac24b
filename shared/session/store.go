package session

import (
	"context"
	"time"
)

// Store keeps all that must last. It is shaped on DynamoDB's primitives
// (conditional put, query by key range, TTL): no transactions, no generic
// key-value, one round trip for each method unless its doc says otherwise.
//
// Reads are strongly consistent. Conditional writes are linearisable for each
// item. Every method may fail with Unavailable, in which case a write may or may
// not have happened: all writes here are safe to repeat. A method never answers
// NotFound because the store is in trouble (I6). Records handed in are copied;
// records handed out belong to the caller. What has expired is not found, whether
// or not it is still on disk; a zero Expires is never. Times are kept to the
// millisecond at least. Methods are safe for concurrent use, also by other
// processes. The suite sessiontest.Store is this contract as tests.
type Store interface {
	Sessions
	Answers
	Handshakes
	Connections
	Keys
	Values
	Log
	Boxes
	Items
	Parts
	Close() error
}

// Writable is what a Store is as well if it can tell that it would fail to write. A
// request is not executed then: its answer would be lost.
type Writable interface {
	// Writable returns why a write would fail by what is known, or nil. It costs no
	// operation of the store, but for a try now and then while writes do fail. Errors
	// are Unavailable.
	Writable(ctx context.Context) error
}

// Sessions keeps session records.
type Sessions interface {
	// Create stores a new session with Rev 1. Conflict if the id is taken.
	Create(ctx context.Context, s Session) error
	// Load reads a session and a box record in one round trip. A box nobody has
	// written is the zero Box with its ID. NotFound if there is no session or it
	// has expired, because of QuitExpired if its row is still there; a session that
	// Ended is returned as it is. The box record is returned with NotFound too.
	Load(ctx context.Context, id ID, box BoxID) (Session, Box, error)
	// Save replaces a session if the stored Rev is still s.Rev, and stores Rev+1.
	// Conflict if not; NotFound if the row is gone. A repeat after Unavailable
	// may be a Conflict with oneself: load and look.
	Save(ctx context.Context, s Session) error
	// List returns sessions of a tenant ("" for all), expired ones left out, in
	// order of id, strictly after an id, at most limit.
	List(ctx context.Context, tenant string, after ID, limit int) ([]Session, error)
}

// Answers keeps what clients answer to questions of servers.
type Answers interface {
	// PutAnswer keeps a client's response to a question. The first one wins: for
	// a question that has one already, nothing is written and first is false. A
	// session's record counts the bytes, see [AnswerCount].
	PutAnswer(ctx context.Context, a Answer) (first bool, err error)
	// Answers returns those of the questions that have been answered.
	Answers(ctx context.Context, id ID, questions []string) ([]Answer, error)
}

// Handshakes keeps handshake records.
type Handshakes interface {
	// SaveHandshake writes a part of a handshake record, over an older one. One of
	// 256 KiB fits; TooLarge if a driver cannot keep it.
	SaveHandshake(ctx context.Context, h Handshake) error
	// Handshake reads a part. NotFound if there is none or it has expired.
	Handshake(ctx context.Context, digest, version string) (Handshake, error)
}

// Connections keeps which session a client's WebSocket connection belongs to.
type Connections interface {
	// PutConnection stores a record, over one with the same id.
	PutConnection(ctx context.Context, c Connection) error
	// Connection reads one. NotFound if there is none or it has expired.
	Connection(ctx context.Context, id string) (Connection, error)
	// DeleteConnection removes one; one that is not there is fine.
	DeleteConnection(ctx context.Context, id string) error
}

// EventAge is how long events and answers are kept if nothing else is said, and at
// most: the drivers' own default is this.
const EventAge = 24 * time.Hour

// Log keeps the events of streams. An event is never changed, and its index
// never given twice: that of the common stream for as long as the session lives,
// also when its events have all expired or were dropped, and that of a request
// stream for as long as any event of it is there. Streams are named so that no
// two are ever the same.
//
// What is kept: an event can be read until its Expires, or for [EventAge] if that
// is sooner or not given, unless there is too much. A driver bounds the log by
// number and by bytes (defaults 1,000 and 8 MiB; each says of what, see its
// Options), now and then, and so that
//   - what is dropped is the front of a stream, in whole batches: never a hole;
//   - the last batch of the common stream stays;
//   - a request that has not ended may have 16 times as much, and its last batch
//     stays; the end of a request that has stays for a minute at least;
//   - who reads from a cursor in front of what is left is told of a Gap.
type Log interface {
	// Append writes a batch (1 to MaxBatchEvents events of one line each,
	// MaxBatchBytes together at most) under the key of its first index, if that
	// key is free. Same Gen, Seq, Final, Retry (to the millisecond) and bytes
	// already there: nil, or Duplicate if b is to be written Once; nothing is written.
	// A store that repeats its own try knows that. Anything else there: Conflict. Where
	// a batch was dropped or has expired on the common stream the key is not free;
	// the same batch again may then be either. It wakes those who Wait for the
	// stream.
	//
	// The caller must write at Tail.Last+1 only, so that two writers always meet
	// on the same key; the store does not check for holes.
	//
	// Errors: Invalid and TooLarge as [Batch.Lines] says, Conflict, Duplicate.
	Append(ctx context.Context, b Batch) error
	// Read returns events strictly after a cursor, at most limit; a limit outside
	// 1 to MaxRead is moved into it. A page ends early, with More, when it holds
	// MaxBatchBytes, and in front of events that are gone: a gap is only ever in
	// front of a page. A cursor beyond the end, an unknown stream, or one of
	// another session is an empty page.
	Read(ctx context.Context, id ID, stream StreamID, after Index, limit int) (Page, error)
	// Tail returns the last batch of a stream without its events. That of the
	// common stream is known for as long as its session lives, even when its
	// events have expired; that of a request stream is then zero.
	Tail(ctx context.Context, id ID, stream StreamID) (Tail, error)
	// Newest returns the request stream of a session that begun last and has
	// events, or Common if there is none.
	Newest(ctx context.Context, id ID) (StreamID, error)
	// Wait is Read (limit MaxWait) that waits for something to read. It returns an
	// empty page at until. It may do so earlier, at the store's own pace, and a
	// store that can does when an item of that stream was put, claimed or released:
	// a caller that cares looks for itself as well. It returns ctx's error if that
	// ends first. Waiting reads are not counted as reads of the operation.
	Wait(ctx context.Context, id ID, stream StreamID, after Index, until time.Time) (Page, error)
}

// Boxes keeps box records.
type Boxes interface {
	// Box reads a box record; one that nobody has written is zero with its ID.
	Box(ctx context.Context, id BoxID) (Box, error)
	// SaveBox replaces a box record if the stored Rev is still b.Rev (0: there is
	// none), and stores Rev+1. Conflict if not.
	SaveBox(ctx context.Context, b Box) error
	// Due returns boxes that are not asleep or have items: what the sweep has to
	// look at. It may cost several round trips.
	Due(ctx context.Context) ([]BoxID, error)
}

// Items keeps the messages on their way to boxes.
type Items interface {
	// PutItem stores an item unless one with its box and id is there, whatever
	// its state; put is false then. It may wake those who Wait for the stream, as
	// Claim and Release may.
	PutItem(ctx context.Context, it Item) (put bool, err error)
	// Claim makes a waiting item Taken by gen and returns it with Raw, which
	// stays stored. An item already taken by the same gen is returned again.
	// NotFound if there is none, Conflict if another generation has it, or if it is
	// Suspended or a Leftover.
	Claim(ctx context.Context, box BoxID, id StreamID, gen Generation) (Item, error)
	// Release makes an item that is Taken by gen, and still has its message,
	// Waiting again. released is false, and nothing is written, if it is anything
	// else or not there.
	Release(ctx context.Context, box BoxID, id StreamID, gen Generation) (released bool, err error)
	// SwapItem stores it over the item with its box and id, if that one has the
	// State, Gen and Round of was. swapped is false, and nothing is written, if it
	// has not, or is not there. A repeat after Unavailable finds its own: read and
	// look. It may wake those who Wait for the stream.
	SwapItem(ctx context.Context, was, it Item) (swapped bool, err error)
	// Item reads one item. NotFound if there is none.
	Item(ctx context.Context, box BoxID, id StreamID) (Item, error)
	// Items returns the items of a box by id, Raw left out.
	Items(ctx context.Context, box BoxID) ([]Item, error)
	// DeleteItem removes an item; one that is not there is fine. If gen is not 0
	// it is removed only while Taken by that generation.
	DeleteItem(ctx context.Context, box BoxID, id StreamID, gen Generation) error
}

// Parts keeps the pieces of frames that did not fit into one.
type Parts interface {
	// PutPart keeps a piece of a frame (at most MaxPart bytes, else TooLarge), over
	// the same one.
	PutPart(ctx context.Context, p Part) error
	// Parts returns the pieces of a frame by number. They are never deleted but
	// expire: the frame may have to be handled again.
	Parts(ctx context.Context, box BoxID, frame string) ([]Part, error)
}
