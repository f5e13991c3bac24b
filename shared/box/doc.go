// Package box runs one configured stdio MCP server for one tenant: one OS process
// for each session, started by the first message of that session and stopped when
// it is idle. It hides processes and their groups, line framing, the initialize
// handshake, ids and progress tokens that would collide, the choice of the stream a
// message belongs to, and what becomes of open requests when a process dies.
//
// It knows nothing of HTTP, the relay or the store. What a server says leaves
// through a [Sink]; whoever holds the [Box] numbers it, stores it and sends it.
//
// # One process
//
//	Deliver ─▶ start ─▶ initialize ─▶ ready ─▶ idle, end of its session, Close ─▶ stopped
//	             │           │          │
//	             ▼           ▼          ▼
//	       process_start  mcp_init   runtime        it failed: every open request
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
// # What it does not do yet
//
// The server runs with the rights of the runner, in the directory and with the
// programs that are there: no dependency install, no staging of a workspace, no
// resource limits, no sandbox, no snapshots. Each of these gets a file of its own
// here, and the phase under which its failures are told is in [Phase] already.
package box
