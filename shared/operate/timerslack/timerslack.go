// Package timerslack sets the timer slack of this program: how late the kernel may wake a
// sleeping thread, 50 µs by default.
//
// While any goroutine runs, every Go program has a thread (sysmon) that wakes every 20 µs to look
// for stuck threads. On a machine with many small programs that mostly pass each other messages,
// sysmon takes a quarter of the processor's time. With a larger slack, sysmon wakes less often.
// Messages do not wait for timers.
//
// Threads and processes inherit the slack of the thread that starts them, so that runners and
// servers inherit it from dormouse. Only Linux has timer slack; on other systems [Take] does
// nothing.
package timerslack

import "time"

// Slack is the timer slack that [Take] sets. Threads of a Go program also wait for each
// other with timers of some µs. With more slack than this, one call in twenty came late.
const Slack = 500 * time.Microsecond
