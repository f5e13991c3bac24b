// Package slack says how late the kernel may wake a thread that sleeps: its timer
// slack, 50 µs unless somebody asks for another. Every program in Go has a thread that
// looks every 20 µs, while anything runs, whether another one is stuck (sysmon). In a
// machine of many small programs that mostly hand each other messages those looks cost
// a quarter of the processor's time; with more slack there are fewer of them. No
// message waits for a timer, so none comes later.
//
// A thread gives its slack to the threads and processes it starts, which is the only
// way to reach all threads of a program. Systems other than Linux know no slack; there
// nothing happens.
package slack

import "time"

const (
	// Several is for programs that run on several processors, and for those of which
	// nothing is known: the threads of one in Go also wait for each other by the clock,
	// for some µs. More than this made one call of twenty late.
	Several = 500 * time.Microsecond
	// Single is for our programs that run on one processor: functions and runners. Their
	// timers are deadlines and paces, of 100 ms at the least.
	Single = 5 * time.Millisecond
)
