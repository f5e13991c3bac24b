// Package remote speaks to MCP servers that somebody else hosts, and that are reached by URL.
// A [Servers] is the client of such servers: it sends one request, in any protocol version
// that the server speaks, and keeps nothing open afterwards.
//
// # What is kept
//
// One durable value of the client's session holds the server's version, its session id and
// its answer to initialize (type link). If a server does not know its session any more (404),
// the package opens a new one and sends the request again.
//
// # Versions
//
// The first message of a session probes with server/discover (2026-07-28). A server that does not
// know that method gets initialize over Streamable HTTP. If the server refuses that, the package
// tries HTTP+SSE (MCP 2026-07-28, "Backward Compatibility"). A session of HTTP+SSE ends with its
// stream, so each message opens another session.
//
// # Messages between legacy ends
//
// The messages of a legacy client and a legacy server pass as they are, but for ids, progress tokens,
// tasks and the capabilities that offered takes out. For other pairs package bridge translates.
//
// # Questions
//
// A legacy server asks on the stream of its answer. If its events have ids, the call is
// suspended and the stream is closed. When the client has answered, the package posts the
// answers and resumes the stream with Last-Event-ID. If the events have no ids, this process
// keeps the stream open until the answers come, and no other process can go on with the call.
//
// A legacy server may also ask on the standalone stream of its session (type
// standaloneStream). That stream is open while a request of the session is at the server. A
// legacy client gets a question from there with an id that contains the server's own id, so
// any process can give the server the answer, and the call need not be suspended.
//
// # Outcomes
//
// A request whose connection could not be made did not run. A request whose answer was lost is
// resumed with Last-Event-ID. If no event of the answer had an id, a request that only reads is
// sent once more, and any other ends with CodeOutcomeUnknown.
//
// # Addresses
//
// The package connects to public addresses only, unless the servers file permits private
// ones. It checks the address of each connection after names are resolved, so that neither a
// name nor a redirect leads to a private address. The package follows redirects to the same
// origin only, because headers hold secrets.
package remote
