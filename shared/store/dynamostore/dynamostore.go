// Package dynamostore implements storage.Store on one DynamoDB table, which any
// number of Lambda functions read and write at the same time.
//
// The package counts what its requests cost ([Store.Usage]). It reads no environment, creates no
// credentials and does not log.
//
// # Layout
//
//	PK            SK                         holds
//	S#<session>   m                          the session record
//	              e#<stream>#<first index>   a batch of events; the standalone stream is "-"
//	              p#<question>               a client's answer
//	              v#<since>#<hash>           a durable value of the session
//	V#<owner>     v#<hash>                   a durable value of a principal or a server
//	C#<conn>      m                          the record of a client's WebSocket connection
//	B#<box>       m                          the box record
//	              q#<deliver id>             a storage.Item: inbox entry and in-flight mark
//	              f#<frame>#<n>              a piece of a relay frame
//	H#<record>    v#<part>                   a part of a handshake record
//	K#<key id>    m                          an API key; likewise G#<id> a grant, U#<id> an upstream token
//	K#<hash>      t                          a one-time ticket to connect
//	Z#<name>#<n>  z                          a part of a value that is too long for its row
//
// The key of a batch has the index of its first event, so two writers always meet on
// the same key.
//
// A long value is split into parts with partition keys of their own. With one key,
// the 16 MiB of a batch would pass through one partition, which takes 1 MB a second.
// The store writes the parts before the row that names them, and they outlive it, so
// a reader never gets half a value.
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
//	T  tenant of a session, or K, G or U of   s  state of a storage.Item
//	   other records: key of index "tenant"
//	D  box: key of the index "due"
//
// Reads treat a row whose u is in the past as missing, whether DynamoDB has deleted
// it or not. A batch with neither d nor k was dropped for a limit; see [Options].
//
// All reads are strongly consistent except those of the two indexes: List and Due may
// miss the newest writes for a moment.
package dynamostore

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Options limit what the log keeps and how long a call may try. Zero fields get their
// defaults.
type Options struct {
	// Events and Bytes limit each stream of a session. A stream over a limit loses its
	// oldest batches, but never the last one. The log of a request that has not ended may
	// have 16 times as much. Readers see dropped events as a [storage.Page.Gap]. The keys
	// of dropped batches stay taken, so that a fenced writer still meets a conflict there.
	//
	// The store checks a stream only at intervals, so a stream may exceed a limit for a while.
	// It does not limit the streams of a session together: deleting an event costs as much as
	// writing it, and DynamoDB deletes it for free after Age. Defaults: 1,000 events and 8 MiB.
	Events int
	Bytes  int64
	// Age is the longest time for which the store keeps an event. Default:
	// [storage.EventAge].
	Age time.Duration
	// Life is the longest time from a session's last Save to its expiry. The store keeps batches
	// of a standalone stream for Life after they have expired, because the last batch holds the
	// next index. Readers do not see expired batches. Default: 7 days.
	Life time.Duration
	// Patience is how long the store repeats a request that fails or gets no answer, before
	// it returns Unavailable. One attempt may take a third of it. A context that ends
	// earlier ends the call. Default: 15 seconds.
	Patience time.Duration
}

func (o Options) withDefaults() Options {
	o.Events = cmp.Or(o.Events, 1000)
	o.Bytes = cmp.Or(o.Bytes, 8<<20)
	o.Age = cmp.Or(o.Age, storage.EventAge)
	o.Life = cmp.Or(o.Life, 7*24*time.Hour)
	o.Patience = cmp.Or(o.Patience, 15*time.Second)
	return o
}

// Store is a storage.Store in a DynamoDB table. Its methods are safe for concurrent use.
//
// Errors are those that storage.Store names. Unavailable, with the cause attached, also
// means a throttled, unreachable or missing table, refused credentials, or a context that
// ended first. errors.Is finds the context's error. Internal means that DynamoDB called a
// request invalid. If the answer to a write is lost and the driver repeats the write by
// itself, the caller gets the outcome of the first attempt.
type Store struct {
	requests
	options Options
}

// requests sends requests to one table, repeats them, and counts what they consume.
type requests struct {
	client   *dynamodb.Client
	table    string
	patience time.Duration // Options.Patience

	mu    sync.Mutex
	usage Usage
}

var _ storage.Store = (*Store)(nil)

// New returns a Store on an existing table; see [TableDefinition]. The Store replaces
// the client's own retry settings.
func New(client *dynamodb.Client, table string, o Options) *Store {
	o = o.withDefaults()
	return &Store{requests{client: client, table: table, patience: o.Patience}, o}
}

// Close implements storage.Store. It leaves the client, which the caller owns, open.
func (s *Store) Close() error { return nil }

// Usage counts what a Store has consumed.
type Usage struct {
	// ReadUnits and WriteUnits are the capacity units that DynamoDB reported,
	// including those of the indexes. DynamoDB reports nothing for a request that
	// failed, although a refused conditional write costs as much as an accepted one.
	ReadUnits, WriteUnits float64
	// WaitUnits is the share of ReadUnits that Wait consumed.
	WaitUnits float64
	// Requests counts requests by DynamoDB operation, without repeats. The reads of
	// Wait count as "Wait".
	Requests map[string]int64
}

// Usage returns what the Store has consumed since New. The caller owns the map.
func (q *requests) Usage() Usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.usage
	u.Requests = maps.Clone(u.Requests)
	return u
}

func (q *requests) count(operation string, reads, writes float64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.usage.Requests == nil {
		q.usage.Requests = map[string]int64{}
	}
	q.usage.Requests[operation]++
	q.usage.ReadUnits += reads
	if operation == "Wait" {
		q.usage.WaitUnits += reads
	}
	q.usage.WriteUnits += writes
}
