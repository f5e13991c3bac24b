package meter

import "time"

// Operation has the counts of one execution of an operation.
type Operation struct {
	Name        string
	Requests    int           // of the REST API
	Messages    int           // messages of WebSocket APIs, both ways, none over 32 KB
	Invocations int           // of functions
	Trips       int           // round trips to the store, without waits
	Posts       int           // to connections
	ReadUnits   float64       // without waits
	WriteUnits  float64       //
	Waits       float64       // requests of waits; each costs at least one read unit, even if it finds nothing
	WaitUnits   float64       // what the waits consumed, if that is more
	Held        time.Duration // how long a function waits, apart from round trips
	Wakes       int           // boxes that the operation waits for
	OutBytes    int
}

// Habits are costs of an operation that can be measured only on AWS. They are assumptions,
// and a bill names them.
type Habits struct {
	MemoryMB float64       // of a function
	Own      time.Duration // work of a function in an invocation
	Trip     time.Duration // a round trip to DynamoDB, in the same region
	Post     time.Duration // posting a message to a connection
	LogBytes int           // of an invocation, with Lambda's own lines
	BoxStart time.Duration // from RunTask to the runner's hello
	Box      BoxSize
	Idle     time.Duration // how long a box stays awake when it has no work
	Stored   int           // bytes of an idle session
}

// Usual returns the habits of the published tables. Own is measured. On one machine a
// function works 0.5 ms (relay) to 0.9 ms (http) in an invocation, SQLite included. A
// function of 256 MB has a seventh of a processor. The rest are assumptions until a stack
// is measured.
func Usual() Habits {
	return Habits{
		MemoryMB: 256, Own: 5 * time.Millisecond, Trip: 4 * time.Millisecond, Post: 8 * time.Millisecond, LogBytes: 900,
		BoxStart: 30 * time.Second, Box: DefaultBox(), Idle: 2 * time.Minute, Stored: 1250,
	}
}

// Units returns the units of the operation, without the time of boxes. Lambda rounds each
// invocation up to a millisecond.
func (o Operation) Units(h Habits) Units {
	busy := time.Duration(o.Invocations)*(h.Own+time.Millisecond/2) + time.Duration(o.Trips)*h.Trip + time.Duration(o.Posts)*h.Post +
		o.Held + time.Duration(o.Wakes)*h.BoxStart
	waits := max(o.Waits, o.WaitUnits) + float64(o.Wakes*Polls(h.BoxStart))
	return Units{
		Invocations: float64(o.Invocations), Requests: float64(o.Requests), Messages: float64(o.Messages),
		GBSeconds: busy.Seconds() * h.MemoryMB / 1024, ReadUnits: o.ReadUnits + waits, WriteUnits: o.WriteUnits,
		LogGB: GB(int64(o.Invocations * h.LogBytes)), OutGB: GB(int64(o.OutBytes)),
	}
}

// Polls returns how many requests the store on DynamoDB makes at most while it waits. It polls
// every 5 ms at first, then after a tenth of the time waited, and at last every second.
func Polls(wait time.Duration) (n int) {
	for waited := time.Duration(0); waited <= wait; n++ {
		waited += min(max(waited/10, 5*time.Millisecond), time.Second)
	}
	return n + 1 // the last poll, at the end
}

// day and month are the periods of the tables.
const (
	day   = 24 * time.Hour
	month = 730 * time.Hour
)

// Silent returns the units of sessions that send nothing for a day. A client that listens
// polls at intervals of every. If every is zero, the client does not listen.
func (h Habits) Silent(sessions int, poll Operation, every time.Duration) Units {
	u := Units{StoredGBMonths: GB(int64(h.Stored)) * day.Hours() / month.Hours()}
	if every > 0 {
		u = u.Plus(poll.Units(h).Times(float64(day) / float64(every)))
	}
	return u.Times(float64(sessions))
}

// Awake returns the units of a box that is awake for a time.
func (h Habits) Awake(span time.Duration) Units { return Task(span.Seconds(), h.Box) }
