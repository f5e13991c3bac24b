// Package relayhost is the end of the relay that runs in Lambda functions. Package
// relay explains the protocol, package runner is the other end.
//
// [Backend] runs in the functions that have a message for a box: it posts the message
// or puts it into the inbox, and wakes the box. [Handler] is the relay function: it
// handles each frame of a runner. [Sweeper] runs on a schedule and when a task stops:
// it finds lost boxes and ends their requests. All three keep their state in the
// session.Store alone. record.go has the transitions of a box record.
package relayhost
