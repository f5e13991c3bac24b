// Package remote speaks to MCP servers that somebody else hosts, and that are reached by
// URL. A [Servers] is the client of such servers: it sends one request, in any protocol
// version that the server speaks, and keeps nothing open afterwards. It does not know
// streams, sessions of clients or the log; package native has these.
//
// # What is kept
//
// One durable value of the client's session holds the server's version, its session id and
// its answer to initialize (type link). A process caches the values, so a call reads
// nothing in a process that has seen the session. A server that does not know its session
// any more (404) gets a new one, and then the request again: it has refused the request, so
// the request did not run.
//
// # Versions
//
// The first message of a session probes with server/discover (2026-07-28). A server that
// does not know it gets initialize over Streamable HTTP, and a server that refuses that is
// asked for HTTP+SSE (MCP 2026-07-28, "Backward Compatibility"). A server of HTTP+SSE
// forgets its session with the stream, so each message opens a session of its own.
//
// # Questions
//
// A legacy server asks on the stream of its answer. If its events have ids, the call's
// round ends and the stream is closed. The next round posts the answers and resumes the
// stream with Last-Event-ID. Without ids the stream is kept open in this process until
// the answers come; another process cannot go on with such a call, and says so.
//
// # Outcomes
//
// A request whose connection could not be made did not run. A request whose answer was
// lost is resumed with Last-Event-ID; without an id it ends with CodeOutcomeUnknown, unless
// it only reads: then it is sent again, once.
//
// # Addresses
//
// The package connects to public addresses only, unless the servers file permits private
// ones. It checks the address of each connection after names are resolved, so neither a
// name nor a redirect leads to a private address. It follows redirects to the same origin
// only, because headers hold secrets.
package remote
