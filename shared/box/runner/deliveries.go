package runner

import (
	"maps"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

type delivery struct {
	id       storage.StreamID
	round    int // how often the delivery was suspended; the next round is a new delivery with the same id
	session  storage.ID
	ticket   string
	due      time.Time // when to send [frame.Taken], unless the host knows the end of the delivery by then
	taken    alarm
	traced   bool      // the store certainly has an item for the delivery, so that it is not lost with this runner
	reported bool      // the store may have such an item: the delivery came from there, or the runner has sent [frame.Taken]
	ended    bool      // the delivery has its final event, or was suspended, or the host has closed the stream
	over     time.Time // when the host acknowledged the end or the suspension; zero before

	sent    storage.Index     // index of the last event that went into a batch
	pending [][]byte          // events that are in no batch yet
	asks    *frame.Suspension // the suspension that follows the pending events, nil for none
}

// again returns the request that is delivered again when its client has answered questions, nil if d
// is not suspended.
func (d *delivery) again() []byte {
	if d.asks == nil {
		return nil
	}
	return d.asks.Raw
}

type deliveries struct {
	byID map[storage.StreamID]*delivery // deliveries in flight, and those that ended less than idMemory ago
	owed map[storage.StreamID]*delivery // deliveries whose end the host has not acknowledged
}

// running counts the deliveries that have no final event yet.
func (ds *deliveries) running() (n int) {
	for _, d := range ds.owed {
		if !d.ended {
			n++
		}
	}
	return n
}

// forgetLater records that the host has acknowledged the end of d, so that forgetDeliveries may
// remove it.
func (ds *deliveries) forgetLater(d *delivery) {
	if ds.owed[d.id] == d { // otherwise owed has a newer delivery with this id
		delete(ds.owed, d.id)
	}
	d.ended, d.over = true, time.Now()
	d.taken.stop()
}

func (ds *deliveries) forgetDeliveries(old time.Time) {
	maps.DeleteFunc(ds.byID, func(_ storage.StreamID, d *delivery) bool {
		return !d.over.IsZero() && d.over.Before(old)
	})
}
