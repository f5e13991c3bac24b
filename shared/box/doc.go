// Package box runs one configured stdio MCP server for one tenant: one OS process
// for each session, or for several, started by the first message and stopped when it
// is idle. It hides processes and their groups, line framing, the initialize
// handshake, ids and progress tokens that would collide, the choice of the stream a
// message belongs to, and what becomes of open requests when a process dies.
//
// It knows nothing of HTTP, the relay or the store. What a server says leaves
// through a [Sink]; whoever holds the [Box] numbers it, stores it and sends it.
//
// # One process
//
//	Deliver ─▶ starting ─▶ greeting ─▶ ready ─▶ idle, end of its session, Close ─▶ stopping ─▶ gone
//	              │           │          │
//	              ▼           ▼          ▼
//	        process_start  mcp_init   runtime       it failed: every open request
//	                                                ends in an error with that phase
//
// The box owns the handshake: a fresh process gets initialize with the parameters
// of the session's client, then the log level and the subscriptions the session
// had, then the messages that wait. A client's own initialize is answered with that
// result and its notifications/initialized goes nowhere.
//
// # Streams
//
// Every delivery with requests is one request stream, named by its deliver id. It
// ends with the event of the last of its requests, and every request ends: in its
// response, or in a JSON-RPC error. A stdio server does not say which call a
// message belongs to, so: responses, errors and progress go where the request came
// from; a server's own requests and log messages go to the call that is in flight,
// with several to the newest, with none to the common stream; everything else goes
// to the common stream.
//
// Two decisions differ from a plain proxy. A request the client cancels ends with
// an error response ([wire.CodeCancelled]), because a stream that ends without one
// makes clients poll for it for ever. And how long a box is idle counts from what
// clients do, not from what servers say by themselves.
//
// # One process of several sessions
//
// With a wider [Scope] all sessions of a principal, or all of the box, have one
// process. Ids, progress tokens and cancellations are mapped by session, as equal ids
// of one session are by number. The process is initialized once, for a client that has
// every capability, and each session's initialize is answered with that. Its log level is
// the most verbose that a session has set, its subscriptions are those of all, and
// what it says of no call is told to every session that wants it: log lines from the
// session's own level on, changes of resources it has subscribed to, all else. A
// question goes to the client whose call is in flight, with none to the newest session
// that can answer. A client that cannot answer is not asked: the process is told so.
// So it is, and its log lines go nowhere, while calls of several principals are in
// flight, since nobody can tell whose they belong to.
//
// The end of a session cancels its calls and takes back what only it has set. Sessions
// that were never ended are forgotten with the process, or when there are over a
// thousand; one that speaks again is back with it.
//
// # Protocols
//
// Sessions are of the versions that have initialize. A server that refuses initialize is
// tried as a stateless one (2026-07-28), in another process, and the box remembers what
// it speaks. A stateless process hears with each request what initialize would have told
// it, and its results lose what clients do not know. It cannot ask: a call that needs
// input ends here as a [Suspension]. It is delivered again, to any box, when the client
// has answered.
//
// Tasks of 2025-11-25 are kept from clients. A tool of a legacy server that can be
// called as such a task only is called as one in its client's place.
//
// # Before it starts
//
// A [Provisioner] puts in place what a process needs: its workspace, its dependencies,
// the package that npx or uvx would fetch. That counts for the startup timeout, is
// told as [Staging], and fails with the phases session_create and dep_install. What
// was made for the process of a session stays while the process sleeps and goes with
// the session. Clients that wait for the process and gave a progress token are told
// too, as progress below zero: the server's own begins at zero or above.
//
// A start that fails ends what waits for it at once. The next one waits, from the
// second failure on, for 2, 4 and then 8 seconds, whichever session it is for.
//
// # How many, and what they leave
//
// There may be a limit of processes. One more then takes the room of the one that
// has had nothing to do for longest, and is refused, with a time to come back, when
// all are at work.
//
// Every process carries a mark, by which what it has started is found and ended when
// it has ended itself, wherever that has moved to; and by which the next runner finds
// what one that was killed has left.
//
// What a process says on stderr is kept in two places, without secrets: its end in
// memory for the errors that end its requests, and all of it where [Server].Stderr
// says.
//
// # Asleep
//
// A [Keeper] puts back what was in the workspace before the process starts, and saves
// it when the process has ended. That is before the box says that it is idle, so who
// wakes it finds everything. One that has failed, or was killed at work, is not saved:
// it may have left half a file. In the life of the box its workspace stays as it is;
// after it what was saved last comes back. What is kept for a principal ([Server].Kept)
// comes back at each start, because another of its sessions may have saved meanwhile:
// of two that work at the same time, what the later one leaves is kept.
//
// # Time
//
// A request has the tool timeout from when the process knows it. While a question
// that belongs to it is open to the client that clock stands still, and the answer
// timeout of the question runs instead: a human may take hours, a client that has
// gone must not take for ever.
//
// # What it does not do
//
// Without [Server].Sandbox the server runs with the rights of the runner.
package box
