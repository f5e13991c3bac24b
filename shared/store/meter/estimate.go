package meter

import (
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// EstimateStore is a store that counts what DynamoDB would have billed for its calls. It
// computes that from the records of each call:
//
//   - a read of a record costs one unit for each 4 KB, rounded up, or one if there is no record;
//   - a write costs one unit for each 1 KB, rounded up, and one more if an index changes;
//   - a Wait costs as much as DynamoDB's polls in that time, though this store may make none.
//
// A failed call counts as one attempt. The estimate leaves out the cost of bounding the
// log and of deleting or replacing a larger row. An EstimateStore is safe for concurrent
// use.
type EstimateStore struct {
	*intercept.Store

	mu      sync.Mutex
	spent   Stored
	session storage.ID // the session loaded or saved last
	expires time.Time  // its expiry; a new one changes an index
}

// Stored is what a store has consumed, in capacity units of DynamoDB.
type Stored struct {
	ReadUnits, WriteUnits float64 // including waits
	Polls                 float64 // the read units of waits
}

// Minus returns what was consumed since an earlier count.
func (s Stored) Minus(before Stored) Stored {
	return Stored{s.ReadUnits - before.ReadUnits, s.WriteUnits - before.WriteUnits, s.Polls - before.Polls}
}

// Estimate makes an EstimateStore. Closing it closes s.
func Estimate(s storage.Store) *EstimateStore {
	e := &EstimateStore{}
	e.Store = intercept.New(s, e.call)
	return e
}

// Spent returns what was consumed since Estimate.
func (e *EstimateStore) Spent() Stored {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spent
}

func (e *EstimateStore) call(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
	begun := time.Now()
	err := do(ctx)
	waited := time.Since(begun)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch c.Kind {
	case intercept.Read:
		e.spent.ReadUnits += readUnits(c)
		if got, ok := c.Out.(intercept.Loaded); ok && err == nil {
			_ = e.moved(got.Session)
		}
	case intercept.Write:
		e.spent.WriteUnits += writeUnits(writeSize(c)) + e.indexes(c)
	case intercept.Wait:
		polls := unitsOf(size(c.Out), readUnit)
		if waited > 2*time.Millisecond { // a shorter wait has only the first poll
			polls += float64(Polls(waited) - 1)
		}
		e.spent.ReadUnits += polls
		e.spent.Polls += polls
	}
	return err
}

const (
	readUnit  = 4 << 10
	writeUnit = 1 << 10
	// overhead is the size of a row besides its record and data: keys, numbers, nonce.
	overhead = 150
	inlined  = 350 << 10 // a longer row is split into parts
)

func unitsOf(size, unit int) float64 { return float64(max(1, (size+unit-1)/unit)) }

// writeUnits returns the cost of writing a row of size bytes.
func writeUnits(size int) float64 {
	if size > inlined {
		return unitsOf(size, writeUnit) + unitsOf(overhead, writeUnit)
	}
	return unitsOf(size, writeUnit)
}

// readUnits returns the cost of a read. A query of an index, such as List, costs one unit more
// than its rows. A query of a box's items or of a frame's parts is billed for all rows together.
func readUnits(c *intercept.Call) float64 {
	switch out := c.Out.(type) {
	case intercept.Loaded:
		units := 1.0
		if !smallSession(out.Session) {
			units = unitsOf(size(out.Session), readUnit)
		}
		switch {
		case out.Box.ID == "":
			return units
		case smallBox(out.Box):
			return units + 1
		default:
			return units + unitsOf(size(out.Box), readUnit)
		}
	case []storage.Session:
		return 1 + eachRow(out)
	case []storage.Key:
		return 1 + eachRow(out)
	case []storage.Grant:
		return 1 + eachRow(out)
	case []storage.UpstreamToken:
		return 1 + eachRow(out)
	case []storage.Answer:
		questions, _ := c.In.([]string)
		return eachRow(out) + float64(len(questions)-len(out))
	case []storage.Recorded:
		units := 0.0
		for _, r := range out {
			units += unitsOf(size(r.Handshake), readUnit) + unitsOf(size(r.Box), readUnit)
		}
		return max(1, units)
	case []storage.Item:
		return unitsOf(total(out), readUnit)
	case []storage.Part:
		return unitsOf(total(out), readUnit)
	case []storage.BoxID:
		return unitsOf(len(out)*overhead, readUnit)
	default:
		return unitsOf(size(out), readUnit)
	}
}

// surely is how many bytes the strings of a record may have so that the record is certainly
// smaller than a read unit, and need not be encoded. JSON takes at most six bytes for a byte
// of a string, and less than 1,500 for all numbers, times, digests, names of fields and words of ours.
const surely = (readUnit - overhead - 1500) / 6

func smallSession(s storage.Session) bool {
	return len(s.Subscribed)+len(s.Standby)+len(s.Conns)+len(s.Pushed)+len(s.Members)+len(s.Later) == 0 &&
		len(s.ID)+len(s.Server)+len(s.Digest)+len(s.Tenant)+len(s.Principal)+len(s.Props)+len(s.Version)+len(s.Init)+
			len(s.ServerInfo)+len(s.Params)+len(s.Primary.Nonce)+len(s.Level) <= surely
}

func smallBox(b storage.Box) bool {
	return len(b.Later) == 0 && len(b.ID)+len(b.Tenant)+len(b.Server)+len(b.Runner)+len(b.Task)+len(b.Conn)+len(b.Owner)+
		len(b.TokenHash)+len(b.Failure.Phase)+len(b.Failure.Detail)+len(b.Failure.Advice)+len(b.Failure.Signal) <= surely
}

func eachRow[T any](rows []T) (units float64) {
	for _, r := range rows {
		units += unitsOf(size(r), readUnit)
	}
	return units
}

func total[T any](rows []T) (bytes int) {
	for _, r := range rows {
		bytes += size(r)
	}
	return bytes
}

// writeSize returns the size of the row that is written: the given record, or the item that
// Claim returns.
func writeSize(c *intercept.Call) int {
	if c.Method == "Claim" {
		return size(c.Out)
	}
	return size(c.In)
}

// indexes returns how many rows of indexes a write changes.
func (e *EstimateStore) indexes(c *intercept.Call) float64 {
	switch c.Method {
	case "Create", "Save":
		if moved := e.moved(c.In.(storage.Session)); moved || c.Method == "Create" {
			return 1
		}
	case "SaveBox": // the index of the boxes that a sweep checks gets or loses this one
		b := c.In.(storage.Box)
		if b.State == storage.Asleep || b.State == storage.Starting && b.Attempt <= 1 {
			return 1
		}
	case "CreateKey", "CreateGrant", "CreateUpstreamToken", "PutItem", "DeleteItem":
		return 1
	}
	return 0
}

// moved reports whether a session has a new expiry, which changes a row of the index. The caller
// holds the lock.
func (e *EstimateStore) moved(s storage.Session) bool {
	same := e.session == s.ID && e.expires.Equal(s.Expires)
	e.session, e.expires = s.ID, s.Expires
	return !same
}

// size returns the size of a record in DynamoDB, or of the batches of a page. It is 0 for nil
// and for any other value.
func size(record any) int {
	data := intercept.Bytes(record)
	switch r := record.(type) {
	case storage.Session:
		return encoded(storage.MarshalSession, r) + data
	case storage.Box:
		return encoded(storage.MarshalBox, r)
	case storage.Item:
		return encoded(storage.MarshalItem, r) + data
	case storage.Connection:
		return encoded(storage.Marshal[storage.Connection], r)
	case storage.Key:
		return encoded(storage.KeyKind().Marshal, r)
	case storage.Grant:
		return encoded(storage.GrantKind().Marshal, r)
	case storage.UpstreamToken:
		return encoded(storage.UpstreamTokenKind().Marshal, r)
	case storage.EntryTicket:
		return encoded(storage.Marshal[storage.EntryTicket], r)
	case storage.Batch:
		return overhead + data + 3*len(r.Events) // each event's length stands before it
	case storage.Page:
		return overhead + data + 3*len(r.Events)
	case storage.Answer, storage.Handshake, storage.Value, storage.Part:
		return overhead + data
	default:
		return 0
	}
}

func encoded[T any](marshal func(T) ([]byte, error), v T) int {
	record, err := marshal(v)
	if err != nil {
		return overhead // a record that cannot be encoded is not stored either
	}
	return overhead + len(record)
}
