// Package sessions serves sessions. [Manager] has a method for each thing that a client can do.
// It joins a [storage.Store], which keeps everything that must last, and a [Backend],
// which executes the client's messages. The package does no I/O of its own and knows no
// HTTP, no AWS and no process. A transport speaks to an [Endpoint]: one server, or several at
// one address (package aggregate).
//
// Each message takes the same way through the package:
//
//	transport ─▶ Endpoint.Route ─▶ Manager.Accept ─▶ Store.Load        1 read: the session and its box
//	                                           ─▶ Backend.Deliver   1 post, or an inbox item and a wake
//	transport ◀─ Stream.Next    ◀─ Call.Next   ◀─ Store.Wait        the log is the only meeting place
//
// The relay function that gets the answer from the box, or a box in the same program, writes it
// to the log. A client that
// comes back later waits on the same log with Store.Wait. If events are pushed to the
// client, the function that appends them also sends them ([Publisher]).
//
// # Invariants
//
//   - I1 An event is appended to the log before it is delivered to a client.
//   - I2 Each stream has one appender in a generation, which assigns the index. Its
//     write succeeds if the key is free, and is idempotent for the same bytes. After a
//     conflict on the standalone stream the writer is fenced and must stop. After one on a
//     request stream, that stream is closed and the writer sends nothing more for it.
//   - I3 Raw JSON passes untouched: ids keep type and digits, unknown fields
//     survive.
//   - I4 A replay is whole, or says that there is a gap ([storage.Page.Gap]).
//   - I5 A ticket is authenticated. Its holder can write only to the session, the
//     stream, the generation and the box that the ticket names.
//   - I6 Trouble with the store is [storage.Unavailable], never [storage.NotFound], so
//     that no client throws its session away for it.
//   - I7 If a request cannot be finished, the program that finds out first ends it with
//     an error event: the runner, the relay, the sweep, or the function that waits.
//   - I8 The function tells the client that a request is accepted only after a durable
//     trace of it exists ([Call.Next]).
package sessions
