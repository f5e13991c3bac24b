// Package sessions serves the sessions of MCP clients. [Manager] has a method for each thing that a
// client can do. A Manager joins a [storage.Store], which keeps everything that must last, and a
// [Backend], which executes the client's messages. A transport speaks to an [Endpoint]: one server,
// or several at one address (package aggregate).
//
// The log is the streams of events in the store. An instance is a running program that uses this
// package: an invocation on Lambda, or the one process on one machine. A box runs the processes of
// one server for one tenant; it sleeps when they have nothing to do. A handshake record keeps what a
// server answered to initialize and to requests for lists. Legacy clients speak MCP up to 2025-11-25,
// which has sessions; modern clients speak 2026-07-28, which has none.
//
// Each message takes the same way through the package:
//
//	transport ─▶ Endpoint.Route ─▶ Manager.Accept ─▶ Store.Load        1 read: the session and its box
//	                                           ─▶ Backend.Deliver   1 post, or an inbox item and a wake
//	transport ◀─ Stream.Next    ◀─ Call.Next   ◀─ Store.Wait        the log is the only meeting place
//
// A client that comes back later waits on the log with Store.Wait. If the client has a WebSocket, or
// the event stream of HTTP+SSE, the instance that appends events also sends them there
// ([Publisher]).
//
// # Invariants
//
//   - I1 An event is appended to the log before it is delivered to a client.
//   - I2 While a box is in one generation (its life from one wake to the next sleep), one writer
//     appends to each stream and assigns the indexes. A write succeeds if its index is free, and
//     is idempotent for the same bytes. A conflict on the standalone stream means that a newer
//     generation writes: the writer must stop. A conflict on a request stream means that the
//     request has its end: the writer sends nothing more for it.
//   - I3 Raw JSON passes untouched: ids keep type and digits, unknown fields
//     survive.
//   - I4 A replay is whole, or says that there is a gap ([storage.Page.Gap]).
//   - I5 A ticket, which lets a box write events, is authenticated. Its holder can write only to
//     the session, the stream, the generation and the box that the ticket names.
//   - I6 Trouble with the store is [storage.Unavailable], never [storage.NotFound]: a client
//     that gets NotFound throws its session away.
//   - I7 If a request cannot be finished, the program that finds out first ends it with an error event:
//     the runner, the relay, an instance that looks for lost boxes, or the instance that waits.
//   - I8 The instance tells the client that a request is accepted only after a durable
//     trace of it exists ([Call.Next]).
package sessions
