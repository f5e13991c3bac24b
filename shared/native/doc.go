// Package native hosts servers that are written in Go with go-sdk: an author gives a
// [Server] for a name, and it is served as a server in a box is, by the same
// sessions, transports and eras, without a box. It hides that there is no server
// between two messages, the eras, and what go-sdk gets wrong; it does not know HTTP
// routes, AWS, or any server.
//
// # A message
//
// The function that has a message executes it ([Backend.Deliver]): it makes the
// server anew, connects it to a transport that carries this one request, always as
// a request of the modern era (2026-07-28), and writes what comes to the log. Package
// bridge makes of it what a client of the legacy era understands. An answer within
// a second is one write, with all that was said before it; after that there is an
// item that says who executes the request, until when (a lease, renewed while it is
// executed), and the client may be told that it was accepted. A request is executed
// once: whoever finds a lease that has run out ends it with an error.
//
// What comes over a WebSocket, or belongs to an event stream of HTTP+SSE, is
// answered elsewhere than it was sent. There the message is put down first and an
// invocation of its own executes it, so that nobody waits for it.
//
// # A call in rounds
//
// A handler that returns input requests ends its round. The questions go to the
// client, and the call is an item that is suspended (see session.Item) until the
// last of them is answered: then an invocation executes the next round, with the
// answers, wherever it happens to be. One that returns [Later] goes on at a time of
// its own, by an alarm. Nothing runs in between, and everything may have been built
// anew. What an invocation is for stands in the store; that it comes twice, late or
// never is made up for by whoever polls for the call, and by [Backend.Sweep].
//
// # What go-sdk gets wrong
//
// Ids and progress tokens do not pass through it, for it rounds integers over 2^53:
// each request has a connection of its own and the same small id there. Errors
// without a code get one. Results are not public for caches because nothing was
// said ([Session.Options]). The changes of lists it tells of too late for a server
// that ends with its answer; [Session.Notify] is for them. Its handlers of
// subscriptions, which it only calls in the legacy era, are called in both. What a tool
// says of tasks it has no field for; see [AsTask].
//
// # Cancel
//
// A cancel ends what waits, and what is executed by the same function, at once. What
// another function executes it ends in the log at once, and its handler notices within
// two seconds; if that has begun less than a second before, the cancel waits until there
// is a trace of it.
package native
