package storage

import (
	"context"
	"time"
)

// Store keeps everything that must outlive an instance. A driver implements it; the suite
// storagetest.Store is this contract as tests.
//
// The interface follows DynamoDB's primitives: conditional put, query by key range, and
// expiry. There are no transactions. Each method is one round trip unless its doc says
// otherwise. The rules for all methods:
//
//   - Reads are strongly consistent. Conditional writes are linearizable for each record.
//   - Every method may fail with Unavailable. A write may then have happened or not.
//     Every write is safe to repeat.
//   - NotFound means that the record is not there. Trouble with the store is always
//     Unavailable, because a client that gets NotFound throws its session away.
//   - The store copies the records that it is given. Records that it returns belong to
//     the caller.
//   - A record whose Expires has passed is not found, even if it is still on disk. A
//     zero Expires means never.
//   - Times keep at least millisecond precision.
//   - All methods are safe for concurrent use, by other processes too.
//   - A method whose ctx ends first may fail with Unavailable, with ctx's error as the
//     cause. Wait returns ctx's error.
type Store interface {
	Sessions
	Answers
	Handshakes
	Connections
	Keys
	Grants
	UpstreamTokens
	Values
	Log
	Boxes
	Items
	Parts
	// Close releases the resources of the Store. Its methods must not be called
	// afterwards.
	Close() error
}

// Writable is an optional interface of a Store that knows when a write would fail, for example because
// the disk is full. While writes would fail, callers refuse requests before they execute them, because
// the answers would be lost.
type Writable interface {
	// Writable returns the reason why the next write will probably fail, or nil. While writes fail, it
	// tries a write now and then; otherwise it does not use the store. Errors: Unavailable.
	Writable(ctx context.Context) error
}

// Sessions keeps a record ([Session]) of each client session.
type Sessions interface {
	// Create stores a new session with Rev 1. Errors: Conflict if the ID is taken.
	Create(ctx context.Context, s Session) error
	// Load reads a session and a box record in one round trip. A box that was never
	// written is the zero Box with its ID; the box is returned with NotFound too. If box is
	// "", Load reads only the session. A session in state Ended is returned like any other.
	//
	// Errors: NotFound if the session is not there or has expired. If its row is still
	// there, QuitExpired is the cause.
	Load(ctx context.Context, id ID, box BoxID) (Session, Box, error)
	// Save replaces a session if the stored Rev equals s.Rev, and stores Rev+1. A
	// repeat after Unavailable may conflict with the caller's own write: load and compare.
	//
	// Errors: Conflict if the Rev differs, NotFound if the row is gone.
	Save(ctx context.Context, s Session) error
	// List returns the sessions of a tenant, or of all tenants for "", in order of ID.
	// It begins after the given ID and returns at most limit. A shorter result is the last.
	// Expired ones are left out.
	List(ctx context.Context, tenant string, after ID, limit int) ([]Session, error)
}

// Answers keeps the responses of clients to questions of servers.
type Answers interface {
	// PutAnswer stores the first answer to a question. If there is one already, PutAnswer writes
	// nothing and first is false. The caller counts the bytes in the session; see [AnswerCount].
	PutAnswer(ctx context.Context, a Answer) (first bool, err error)
	// Answers returns the answers to the questions that have one, in any
	// order. Questions are IDs as in Answer.Question.
	Answers(ctx context.Context, id ID, questions []string) ([]Answer, error)
}

// Handshakes keeps handshake records: a server's answers to initialize and to requests for lists, which
// are given to later clients.
type Handshakes interface {
	// SaveHandshake stores a part of a handshake record and replaces an older one. A
	// result of 256 KiB must fit. Errors: TooLarge if the driver cannot keep it.
	SaveHandshake(ctx context.Context, h Handshake) error
	// Handshake reads a part. Errors: NotFound if there is none or it has expired.
	Handshake(ctx context.Context, digest, version string) (Handshake, error)
	// Recorded reads parts of several records, each with a box, in one round trip for every 50 wants.
	// The results are in the order of wants. A part that is not there is the zero Handshake. A box that
	// was never written is the zero Box with its ID. A want without Version reads only the box. A want
	// without Box reads only the part.
	Recorded(ctx context.Context, wants []RecordKey) ([]Recorded, error)
	// ListHandshakes returns the parts of a record whose Version begins with prefix, in
	// order of Version. It is for operators, and may take several round trips.
	ListHandshakes(ctx context.Context, digest, prefix string) ([]Handshake, error)
}

// Connections keeps which session a client's WebSocket connection belongs to.
type Connections interface {
	// PutConnection stores a record and replaces one with the same ID.
	PutConnection(ctx context.Context, c Connection) error
	// Connection reads a record. Errors: NotFound if there is none or it has expired.
	Connection(ctx context.Context, id string) (Connection, error)
	// DeleteConnection removes a record. It is no error if there is none.
	DeleteConnection(ctx context.Context, id string) error
}

// Keys keeps API keys and connect tickets ([EntryTicket]).
type Keys interface {
	// Keys returns the collection of keys. A key that is revoked is read like any other.
	Keys() Collection[Key]
	PutEntryTicket(ctx context.Context, t EntryTicket) error
	// TakeEntryTicket removes a ticket and returns it. At most one of several callers
	// gets it. After Unavailable the ticket may be gone. Errors: NotFound.
	TakeEntryTicket(ctx context.Context, hash string) (EntryTicket, error)
}

// Grants keeps the grants of the authorization server: a [Grant] lets a client call a server in a
// user's name.
type Grants interface {
	// Grants returns the collection of grants. A grant that is revoked is read like any other.
	Grants() Collection[Grant]
}

// UpstreamTokens keeps the keys and tokens that servers need at third parties, for each
// of their users.
type UpstreamTokens interface {
	// UpstreamTokens returns the collection of these records. To remove one, save it without
	// its secret and with an expiry in the past.
	UpstreamTokens() Collection[UpstreamToken]
}

// Values keeps durable values of native servers, which are part of Dormouse's own program. It also keeps
// values of Dormouse itself, under an empty tenant.
//
// A value of a session lives as long as the session's row, and the driver deletes it some time after
// the row. Only callers that have read the session's record know the key, so the driver need not look
// at the session.
type Values interface {
	// LoadValue reads a value. A value that is not there has Rev 0; that is no error.
	// Errors: Invalid as [ValueKey.Check] says.
	LoadValue(ctx context.Context, k ValueKey) (Value, error)
	// SaveValue writes a value if the stored Rev equals v.Rev, and returns it with its new Rev
	// ([NextRev]). No earlier value of this key has had that Rev. Empty Data deletes the value:
	// SaveValue returns a value with Rev 0. As with Save, a repeat may conflict with the
	// caller's own write.
	//
	// Errors: Invalid and TooLarge as [Value.Check] says; Conflict if the Rev differs, with the
	// stored value as the result; NotFound if the driver sees that the key's session is gone.
	SaveValue(ctx context.Context, v Value) (Value, error)
}

// Log keeps the events of streams.
//
// An event never changes, and an index is never used twice. For the standalone stream this holds as
// long as the session lives, even after all its events were dropped. For a request stream it holds as
// long as any of its events is there. Stream IDs are unique.
//
// An event can be read until its Expires, or for [EventAge] if that is sooner or Expires is zero. A
// driver also bounds the events and the bytes of a session, or of each stream (by default 1,000 and
// 8 MiB; see the Options of the driver). It drops events from time to time, so that:
//
//   - it drops the front of a stream, in whole batches, and never leaves a hole;
//   - the last batch of the standalone stream stays;
//   - for a request that has not ended the bounds are 16 times as high, and its last batch stays;
//   - the end of a request stays for at least a minute;
//   - the end of a request whose stream has an ID of [NewKeptStreamID] stays until it expires. If
//     these ends of a session exceed 16 times the bounds, the driver drops the oldest;
//   - a reader whose cursor is before the first remaining event gets a Page with Gap.
type Log interface {
	// Append writes a batch under the key of its first index, if that key is free. Append wakes callers
	// that Wait for the stream. If the key has the same batch already, Append writes nothing, and
	// returns nil, or Duplicate if b.Once is set. Batches are the same if they have equal Gen, Seq,
	// Final, Retry to the millisecond, and bytes of events. A driver may repeat a write whose outcome
	// it does not know. If it then finds its own batch, that is not a Duplicate.
	//
	// The key of a batch of the standalone stream is not free after the batch was dropped or has
	// expired. A repeat of that batch may get nil or Conflict.
	//
	// The caller must write at Tail.Last+1, so that two writers always meet at the same key. The store
	// does not check for holes.
	//
	// Errors: Conflict if the key has another batch; Duplicate; Invalid and TooLarge as [Batch.Lines]
	// says.
	Append(ctx context.Context, b Batch) error
	// Read returns the events after a cursor, at most limit, which is clamped to 1 to
	// MaxRead. A page ends early, with More, when it has MaxBatchBytes. It also ends early
	// before missing events, so that a gap is always at the front of a page. The page is
	// empty for a cursor at or after the end, an unknown stream, and another session's
	// stream.
	Read(ctx context.Context, id ID, stream StreamID, after Index, limit int) (Page, error)
	// Tail returns the last batch of a stream without its events. The Tail of the
	// standalone stream is known as long as its session lives, even if its events have
	// expired. The Tail of a request stream is zero once its events have expired.
	Tail(ctx context.Context, id ID, stream StreamID) (Tail, error)
	// Newest returns, of the request streams of a session that have events, the one that began
	// last. It returns Standalone if there is none.
	Newest(ctx context.Context, id ID) (StreamID, error)
	// Wait is Read with limit MaxWait, but waits until there is something to read. It returns an empty
	// page at the deadline. Some drivers also return when an item with the stream's ID was put, claimed,
	// released or swapped; callers that depend on this must poll. It returns ctx's error if ctx ends
	// first.
	Wait(ctx context.Context, id ID, stream StreamID, after Index, deadline time.Time) (Page, error)
}

// Boxes keeps a record ([Box]) of each box: the processes of one server for one tenant.
type Boxes interface {
	// Box reads a box record. A record that was never written is the zero Box with its ID.
	Box(ctx context.Context, id BoxID) (Box, error)
	// SaveBox replaces a box record if the stored Rev equals b.Rev, where 0 means that
	// there is none, and stores Rev+1. Errors: Conflict.
	SaveBox(ctx context.Context, b Box) error
	// Due returns the boxes that are up (not asleep), and those that have items. It may take several
	// round trips.
	Due(ctx context.Context) ([]BoxID, error)
}

// Items keeps in-flight items: the messages on their way to boxes. Methods that change
// an item may wake callers that Wait for the stream with its ID.
type Items interface {
	// PutItem stores an item unless there is one with its box and ID, in whatever
	// state; put is then false.
	PutItem(ctx context.Context, it Item) (put bool, err error)
	// Claim turns a Waiting item into one Taken by gen. It returns the item with Raw,
	// which stays stored. If gen has taken the item already, Claim returns it again.
	//
	// Errors: NotFound if there is none. Conflict if another generation has it, or it is
	// Suspended or a Leftover.
	Claim(ctx context.Context, box BoxID, id StreamID, gen Generation) (Item, error)
	// SwapItem stores next in place of the item with the same box and ID, if that item has the
	// State, Gen and Round of old. If swapped is false, nothing was written. A repeat after
	// Unavailable may find the caller's own write: read and compare.
	SwapItem(ctx context.Context, old, next Item) (swapped bool, err error)
	// Item reads one item. Errors: NotFound.
	Item(ctx context.Context, box BoxID, id StreamID) (Item, error)
	// Items returns the items of a box in order of ID, without Raw.
	Items(ctx context.Context, box BoxID) ([]Item, error)
	// DeleteItem removes an item. If gen is not 0, it does so only while gen has taken
	// the item. It is no error if nothing is removed.
	DeleteItem(ctx context.Context, box BoxID, id StreamID, gen Generation) error
}

// Parts keeps the pieces of relay frames that are too long for one message.
type Parts interface {
	// PutPart stores a piece of at most MaxPart bytes and replaces one with the same
	// box, frame and number. Errors: TooLarge.
	PutPart(ctx context.Context, p Part) error
	// Parts returns the pieces of a frame in order of number. Pieces expire, but no call
	// deletes them, because the frame may have to be handled again.
	Parts(ctx context.Context, box BoxID, frame string) ([]Part, error)
}
