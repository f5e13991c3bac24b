// Package relayserver is the end of the relay that runs in Lambda functions. Package relay explains
// the protocol. Package runner is the other end.
//
// An instance is a running program with this package: an invocation on Lambda, or the one process
// on one machine. [Backend] runs in the instances that have a message for a box. Backend posts the
// message or puts it into the inbox, and wakes the box. [Handler] handles each frame of a runner.
// [Sweeper] runs on a schedule and when a task stops. Sweeper finds lost boxes and ends their
// requests. All three keep their state only in the storage.Store. record.go has the transitions of
// a box record.
//
// A program may have boxes of its own ([Inside]). Backend calls these boxes, and they write into
// the log themselves.
package relayserver
