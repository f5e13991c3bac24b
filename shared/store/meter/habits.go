package meter

import "time"

// Habits are assumptions about operations on AWS, for bills in advance.
type Habits struct {
	MemoryMB float64       // of a Lambda function
	Own      time.Duration // how long an invocation works, without round trips
	Trip     time.Duration // a round trip to DynamoDB, in the same region
	Post     time.Duration // posting a message to a connection
	LogBytes int           // of an invocation, with Lambda's own lines
	BoxStart time.Duration // from RunTask until the runner connects
	Box      BoxSize
	Idle     time.Duration // how long a box stays awake when it has no work
	Stored   int           // bytes of an idle session
}

// Usual returns the habits behind the published tables of costs. Only Own comes from a
// measurement: on one machine an invocation works 0.5 ms (relay) to 0.9 ms (http), SQLite
// included, and a Lambda function of 256 MB has a seventh of a processor.
func Usual() Habits {
	return Habits{
		MemoryMB: 256, Own: 5 * time.Millisecond, Trip: 4 * time.Millisecond, Post: 8 * time.Millisecond, LogBytes: 900,
		BoxStart: 30 * time.Second, Box: DefaultBox(), Idle: 2 * time.Minute, Stored: 1250,
	}
}

// Polls returns how many requests the store on DynamoDB makes at most while it waits.
func Polls(wait time.Duration) (n int) {
	for waited := time.Duration(0); waited <= wait; n++ {
		waited += min(max(waited/10, 5*time.Millisecond), time.Second)
	}
	return n + 1 // the last poll, at the end
}
