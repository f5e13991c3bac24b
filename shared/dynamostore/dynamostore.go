// Package dynamostore is the session.Store of the cloud: one DynamoDB table that
// any number of functions read and write at once.
//
// It hides the layout of the table, conditional writes and how their lost answers
// are told apart from refusals, values longer than an item may be, retries, and
// what everything costs ([Store.Usage]). It does not know who uses it, reads no
// environment, makes no credentials and does not log.
//
// # Layout
//
//	PK            SK                         holds
//	S#<session>   m                          the session record
//	              e#<stream>#<first index>   a batch of events; the common stream is "-"
//	              p#<question>               a client's answer
//	              v#<since>#<hash>           a durable value of the session
//	V#<owner>     v#<hash>                   a durable value of a principal or a server
//	C#<conn>      m                          the record of a client's WebSocket connection
//	B#<box>       m                          the box record
//	              q#<deliver id>             an item: inbox entry and in-flight mark
//	              f#<frame>#<n>              a piece of a relay frame
//	H#<record>    v#<part>                   a part of a handshake record
//	K#<key id>    m                          an API key
//	K#<hash>      t                          a one-time ticket to connect
//	Z#<name>#<n>  z                          a part of a value that is too long for its item
//
// A batch is found by the index of its first event, so
// that two writers always meet on the same key. Parts have partition keys of their
// own: the 16 MiB of one batch would otherwise have to pass through one partition,
// which takes 1 MB a second. They are written before the item that names them and
// outlive it, so that nobody ever sees half a value.
//
// # Attributes
//
//	x  time of deletion (TTL), Unix seconds   u  expiry, Unix microseconds
//	o  nonce of the write                     r  revision
//	j  record as JSON                         i  a session's initialize parameters
//	d  data                                   k, z  number and name of the parts, instead of d
//	n  events in the batch                    g  generation
//	q  batch number                           b  bytes of the data
//	f  final                                  h  SHA-256 of the data
//	w  retry of the last event, milliseconds
//	T  tenant of a session, or that it is an  s  state of an item
//	   API key: key of the index "tenant"
//	D  box: key of the index "due"
//
// What has u in the past is not there, whether DynamoDB has deleted it or not. A
// batch with neither d nor k was dropped for a bound; see [Options].
//
// All reads are strongly consistent but those of the two indexes: List and Due
// may miss for a moment what was written last.
package dynamostore

import (
	"maps"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Options bound what the log keeps and how long a call may try. Zero fields get
// their defaults.
type Options struct {
	// Events and Bytes bound each stream of a session: when it is over one of
	// them it loses its oldest batches, but never the last. The log of a request
	// that has not ended may have 16 times as much. What was dropped is a
	// [session.Page.Gap]; its keys stay taken, so that a fenced writer still meets
	// a conflict there.
	//
	// Streams are looked at now and then, so that one may be over a bound for a
	// while, and they are not added up: to delete an event costs as much as to
	// write it, or as to store it for two months, and what many short streams
	// leave behind goes with Age, for nothing. Defaults: 1,000 and 8 MiB.
	Events int
	Bytes  int64
	// Age is how long any event is kept at most. Default: [session.EventAge].
	Age time.Duration
	// Life is the longest time from a session's last Save to its expiry. The last
	// batch of a common stream stays on disk that much longer, without being
	// readable, because it says where the stream goes on. Default: 7 days.
	Life time.Duration
	// Patience is how long one request to DynamoDB is repeated, also one that has
	// no answer, before it is Unavailable; a third of it is how long one attempt
	// may take. A context that ends earlier counts. Default: 15 seconds.
	Patience time.Duration
}

func (o Options) withDefaults() Options {
	if o.Events == 0 {
		o.Events = 1000
	}
	if o.Bytes == 0 {
		o.Bytes = 8 << 20
	}
	if o.Age == 0 {
		o.Age = session.EventAge
	}
	if o.Life == 0 {
		o.Life = 7 * 24 * time.Hour
	}
	if o.Patience == 0 {
		o.Patience = 15 * time.Second
	}
	return o
}

// Store is a session.Store in a DynamoDB table. It holds nothing that lasts.
// Methods are safe for concurrent use. There are as many as session.Store has.
//
// Besides what the interface says of errors: a throttled or unreachable table, a
// missing one, refused credentials, and a context that ended first are Unavailable
// with the cause attached (errors.Is still finds the context's error); a request
// that DynamoDB calls invalid is Internal. A write whose answer was lost and that
// the driver has repeated by itself has the outcome of the first.
type Store struct {
	client  *dynamodb.Client
	table   string
	options Options

	mu    sync.Mutex
	usage Usage
}

var _ session.Store = (*Store)(nil)

// New makes a Store on a table that is there already; see [TableDefinition]. The
// client's own settings for retries do not count.
func New(client *dynamodb.Client, table string, o Options) *Store {
	return &Store{client: client, table: table, options: o.withDefaults()}
}

// Close implements session.Store. The client stays open: it is the caller's.
func (s *Store) Close() error { return nil }

// Usage is what a Store has consumed.
type Usage struct {
	// ReadUnits and WriteUnits are capacity units as DynamoDB reported them, with
	// those of the indexes. It reports nothing for a request that failed; a
	// refused conditional write costs as much as one that is not refused.
	ReadUnits, WriteUnits float64
	// WaitUnits is the part of ReadUnits that the reads of Wait have consumed.
	WaitUnits float64
	// Requests counts requests by DynamoDB operation, without repeats; the reads
	// of Wait count as "Wait".
	Requests map[string]int64
}

// Usage returns what the Store has consumed since New. The map is the caller's.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usage
	u.Requests = maps.Clone(u.Requests)
	return u
}

func (s *Store) count(operation string, reads, writes float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usage.Requests == nil {
		s.usage.Requests = map[string]int64{}
	}
	s.usage.Requests[operation]++
	s.usage.ReadUnits += reads
	if operation == "Wait" {
		s.usage.WaitUnits += reads
	}
	s.usage.WriteUnits += writes
}
