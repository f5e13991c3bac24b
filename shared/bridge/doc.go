// Package bridge translates between the two eras of MCP: what a client says in one
// into what a server of the other understands, and back. It hides which members of
// a message belong to which era, how a server's question becomes an input request,
// and what a request state holds.
//
// This is one direction, a modern client (2026-07-28) before a server that was
// initialized with the superset of what clients can do (up to 2025-11-25):
//
//   - [ReadRequest] reads a request, [Request.Forward] is what the server gets of it.
//   - [Turn] is one response: it takes the events of the call one after the other
//     and says what the client is told, and what is answered in its place.
//   - [State] travels with the client between two rounds of one call, sealed.
//   - [Discover], [Listener]: what has no counterpart in the legacy era.
//   - [ToolNotes]: what a list of tools says that calls are held to: [CheckParams],
//     which arguments headers have to repeat, and [NotedTasks].
//   - [Task] is a call whose client comes for it later, and [TaskRef] what its name says.
//
// The other direction is a legacy client before a server that speaks the modern era
// only:
//
//   - [Legacy] is the client: what the server has to be told of it with each request
//     ([Legacy.Params]), and what it gets for its initialize.
//   - [Plain], [PlainFault] and [PlainNotification] are what it hears of the server.
//   - [ReadInputs] and [Legacy.Ask] make questions to it of a call for input, [Retry]
//     and [Again] the request that is sent again with its answers.
//   - [Probe], [ReadProbe]: which era a server is of.
//
// It is pure: no input or output, no clock, nothing that lasts. It does not know
// how messages travel, and it holds no capability for granted that a request has
// not declared. Members it does not know pass as they are, byte for byte.
package bridge
