package runner

import (
	"maps"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

type delivery struct {
	id       storage.StreamID
	round    int // how often the delivery was suspended; a later round counts as another delivery
	session  storage.ID
	ticket   string
	due      time.Time // when to send the frame taken, unless the host has the end of the delivery by that time
	taken    alarm
	traced   bool // the host certainly has the trace that reported says may exist
	reported bool // the host has a durable trace of the delivery, or was sent one: it came from the inbox, or the runner sent taken
	ended    bool // the delivery has its final event, or was suspended, or the host has closed the stream
	stored   bool // the host knows that the delivery has ended or was suspended
	over     time.Time

	sent    storage.Index // index of the last event that went into a batch
	pending [][]byte      // events that are in no batch yet
	asks    *Suspension   // the suspension that comes after the events of pending, nil for none
}

// again returns the request that is delivered again in the next round, nil for none.
func (d *delivery) again() []byte {
	if d.asks == nil {
		return nil
	}
	return d.asks.Raw
}

type deliveries struct {
	byID    map[storage.StreamID]*delivery // in flight, and for idMemory after
	owed    map[storage.StreamID]*delivery // the deliveries whose end the host does not have yet
	running int                            // how many of owed have no final event yet
}

// forgetLater records that the host has the end of a delivery.
func (ds *deliveries) forgetLater(d *delivery) {
	if ds.owed[d.id] == d { // otherwise the next round has replaced d, and is owed itself
		delete(ds.owed, d.id)
	}
	d.ended, d.stored, d.over = true, true, time.Now()
	d.taken.stop()
}

func (ds *deliveries) forgetDeliveries(old time.Time) {
	maps.DeleteFunc(ds.byID, func(_ storage.StreamID, d *delivery) bool {
		return d.stored && d.over.Before(old)
	})
}
