// Package host serves sessions. [Host] has a method for each thing a client can do.
// It joins a [session.Store], which keeps all that must last, and a [Backend], which
// executes the client's messages. The package does no I/O of its own and knows no
// HTTP, no AWS and no process.
//
// One message takes one way through it:
//
//	front ─▶ Host.Accept ─▶ Store.Load            1 read: the session and its box
//	                     ─▶ Backend.Deliver       1 post, or an inbox item and a wake
//	front ◀─ Call.Next   ◀─ Store.Wait            the log is the only meeting place
//
// The answer is written to the log by somebody else: the relay function that got
// it from the box. A client that comes back later takes the same Store.Wait. To a
// client that is pushed to, it goes on from there, by whoever wrote it ([Outlet]).
//
// # Invariants
//
//   - I1 An event is appended to the log before it is delivered to anybody.
//   - I2 One appender for each stream and generation. It gives the index; the
//     write is conditional on the key being free and idempotent for the same
//     bytes. A conflict on the common stream means the writer is fenced and must
//     stop; on a request stream it means that this stream is closed, and the
//     writer sends nothing more for it.
//   - I3 Raw JSON passes untouched: ids keep type and digits, unknown fields
//     survive.
//   - I4 A replay is whole, or says that there is a gap ([session.Page.Gap]).
//   - I5 A ticket is authenticated; what it names (session, stream, generation,
//     box) is all its holder can write to.
//   - I6 Trouble with the store is [session.Unavailable], never [session.NotFound]: a client must
//     not throw its session away for it.
//   - I7 A request that cannot be finished gets its error event from whoever finds
//     out: runner, relay, sweep, or the function that waits.
//   - I8 A request is accepted when the function says so to the client, and it
//     says so only after a durable trace exists ([Call.Next]).
package host
