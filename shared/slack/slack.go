// Package slack sets how late the kernel may wake a sleeping thread of this program: its
// timer slack, 50 µs by default. Every program in Go has a thread that looks every 20 µs,
// while anything runs, whether another thread is stuck (sysmon). On a machine of many
// small programs that mostly hand each other messages those looks cost a quarter of the
// processor's time, and a larger slack makes them rarer. No message waits for a timer, so
// none comes later.
//
// A thread gives its slack to the threads and processes that it starts. So dormouse sets
// it once, and runners and servers inherit it. Systems other than Linux have no slack;
// there nothing happens.
package slack

import "time"

// Slack is what [Take] sets. The threads of a program in Go also wait for each other by
// the clock, for some µs: with more than this, one call of twenty came late.
const Slack = 500 * time.Microsecond
