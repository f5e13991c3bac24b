// Package box runs one configured stdio MCP server for one tenant. Each session, or a group of
// sessions, has one OS process. The first message starts the process, and the box stops it when it
// is idle.
//
// The package knows nothing of HTTP, connections or the store. The types of what a box receives
// and sends are those of package frame. The output of a server goes to a [Sink].
//
// # One process
//
//	Deliver ─▶ starting ─▶ greeting ─▶ ready ─▶ idle, end of its session, Close ─▶ stopping ─▶ gone
//	              │           │          │
//	              ▼           ▼          ▼
//	        process_start  mcp_init   runtime       it failed: every open request
//	                                                ends in an error with that phase
//
// The box owns the handshake. A fresh process first gets initialize with the parameters of the
// session's client, or server/discover (see Protocols). The log level, the subscriptions of the
// session and the waiting messages follow. The box answers a client's own initialize with the
// result of that handshake, and drops its notifications/initialized.
//
// # Streams
//
// A [frame.Deliver] brings messages of a client to the box. If there are requests among them, their
// answers form a request stream, named by the delivery's ID. Every request ends in its response or
// in a JSON-RPC error, and the last of these ends the stream. The standalone stream of a session has
// what belongs to no request. A stdio server does not say which call a message belongs to, so the
// box decides:
//
//   - Responses, errors and progress go to the stream of their request.
//   - A server's own requests and log messages go to the call that is in flight, or to
//     the newest of several. Without a call they go to the standalone stream. If the
//     server answers that call first, its question was about something else, and stays open.
//   - Everything else goes to the standalone stream.
//
// Two decisions differ from a plain proxy. A request that the client cancels ends with
// an error response ([wire.CodeCancelled]): if a stream ends without one, clients poll
// for it for ever. And only clients and their calls keep a box from being idle; the
// messages that a server sends by itself do not.
//
// # One process of several sessions
//
// With a wider [Scope] all sessions of a principal, or all sessions of the box, share
// one process. The box maps ids, progress tokens and cancellations by session, and
// gives equal ids of one session different numbers. It initializes the process once,
// for a client that has every capability, and answers each session's initialize with
// that result.
//
// The log level of the process is the most verbose level that a session has set. Its
// subscriptions are those of all sessions together. A notification outside of calls goes
// to every session that wants it. A session wants log lines from its own level on,
// changes of resources that it has subscribed to, and everything else.
//
// A question goes to the client whose call is in flight. Without a call it goes to the
// newest session whose client can answer. If no such client can answer, the process gets
// an error instead. While calls of several principals are in flight, the box cannot tell
// whose call a message belongs to. The box then answers each question with an error, and
// drops log lines.
//
// The end of a session cancels its calls and takes back the settings that only it had. If a
// session is never ended, the box forgets it when the process ends, or when there are over a
// thousand sessions.
//
// # Protocols
//
// The box translates between the versions that have initialize and the stateless version
// (2026-07-28). It learns from the first process which of them the server speaks. If a server
// refuses the one that the box tries first, the box tries the other, in another process, and
// remembers which it was.
//
// A stateless process gets with each request what the client sent in initialize. The box removes
// from its results what the client does not know. A stateless process cannot ask a client: a call
// that needs input ends in this box as a [frame.Suspension]. When the client has answered, the call is
// delivered again, to any box. Requests of a stateless client, and their responses, pass unchanged
// if the process is stateless too.
//
// Clients do not see the tasks of 2025-11-25. Some tools of legacy servers can only be
// called as such a task; the box then makes the task in the client's place.
//
// # What a process writes
//
// [wire.Hear] takes messages in odd forms that can mean one thing only, and the box passes them on
// in the right form. A line that looks like an answer and cannot be understood ends the request
// that it answers, even a request of the box itself. If the line is not JSON, or continues on others,
// the box first waits a second for the right answer. An error without an id belongs to the only
// request that waits, unless the process answers notifications with such errors; the box finds
// that out.
//
// An error quotes only what a process wrote after it got its oldest open request.
//
// If a process exits with code 0, the box finds out which requests the process has not read: the
// kernel says how much is left in its stdin, once no program can read it any more. The box gives
// these requests to another process, once.
//
// # Before it starts
//
// A [Provisioner] puts in place what a process needs: its workspace, its dependencies,
// and the package that npx or uvx would fetch. That time counts towards the startup
// timeout. The sink gets the state [Staging] for each step. Failures have the phases
// session_create and dep_install. The files made for the process of a session stay while the process
// sleeps, and go with the session. Clients that wait for the process and gave a
// progress token get progress below zero, because the server's own progress begins at
// zero or above.
//
// A start that fails ends the waiting requests at once. From the second failure in a
// row on, the next start waits 2, then 4, then 8 seconds, whichever session it is for.
//
// # How many, and what they leave
//
// [Server].MaxProcesses may limit the number of processes. At the limit a new process
// takes the room of the process that has been idle longest. When all processes are at
// work, the box refuses the requests, and says when the client may try again.
//
// Every process has a variable with a unique value, its mark, in its environment, and its children
// inherit it. When the process has exited, the box finds and ends its children by the mark, even if
// they have left the process group. The runner is the program that runs the box. If it is killed,
// the next runner finds by the mark what is left.
//
// The box keeps the stderr of a process in two places, with secrets removed. The last 4,000
// characters stay in memory, for the errors that end its requests. All of it goes to the writer
// that [Server].Stderr opens.
//
// # Asleep
//
// A [Keeper] restores the workspace before the process starts, and saves it when the process has
// ended. The box is idle only after the save. A workspace is not saved if its process failed or
// was killed at work: a file may be half written. A workspace that is not saved stays as it is for
// the life of the box; the next box restores the last saved one. The workspace of a principal
// ([Server].Kept) is restored at each start, because another session of the principal may have
// saved meanwhile. If two of its sessions work at the same time, the later save wins.
//
// With [Server].Images a process sleeps with its memory. It is frozen when it is idle, when each
// open request waits for its client, and when the box ends. The box saves the memory, the
// workspace and the state of the conversation together. If a request is still open, the box at
// once makes a successor, which takes over the conversation and is started when a message needs
// it. The successor, or a process of a later box, gets the memory back if the memory fits. If the
// memory does not fit, the log says why, and the process starts as any other does. A client's
// answer to a question that the process asked outside of requests also wakes it, even in a later
// box.
//
// # Time
//
// The tool timeout of a request begins when the process gets the request. It stands still while a
// question of the request is open to the client; the answer timeout of the question runs instead.
//
// After a request has timed out, the process must show that it works. The box sends a ping, and
// asks for a list of a kind that the process has declared, because some servers answer no ping.
// Any response, question or progress of a request in flight is a sign of life. New requests wait
// for a sign. If none comes within five seconds, another process takes the place of this one as
// soon as a request waits and no other is open. A process without lists is not asked and never
// replaced.
//
// # What it does not do
//
// Without [Server].Sandbox the server runs with the rights of the runner.
package box
