// Package bridge translates between the two eras of MCP: legacy, the versions up to 2025-11-25 with
// initialize and sessions, and modern, the stateless version 2026-07-28. It turns a client's message
// of one era into a message that a server of the other era understands, and translates back.
//
// In one direction, a modern client uses a legacy server. The server got an initialize that
// declares everything that clients can do ([Superset]).
//
//   - [ReadRequest] reads a request. [Request.Forward] returns the params for the server.
//   - [Turn] is one response. It takes the events of the call in order. For each it returns
//     a message for the client, or an answer to the server in the client's place.
//   - [State] travels, sealed, with the client between two rounds of one call.
//   - [Discover] and [Listener] have no counterpart in the legacy era.
//   - [ToolNotes] returns what later calls of the tools in a list need: the arguments that
//     headers must repeat ([CheckParams]), and task support ([NotedTasks]).
//   - [Task] is a call whose result its client fetches later. [TaskRef] is the content of its taskId.
//
// In the other direction, a legacy client uses a server that speaks the modern era only:
//
//   - [Legacy] is the client. [Legacy.Params] adds to each request what the server must know about
//     the client. [Legacy.Initialize] makes the result of initialize for the client.
//   - [Plain], [PlainFault] and [PlainNotification] translate the server's messages.
//   - [ReadInputs] and [Legacy.Ask] turn a server's result with inputRequests into questions to the
//     client. [Retry] and [Again] make the request that is sent again with the answers.
//   - [Probe] and [ReadProbe] find out whether a server speaks the modern era.
//
// The package does no input or output, reads no clock and keeps nothing. Members that it does not
// know pass byte for byte.
package bridge
