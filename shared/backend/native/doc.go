// Package native hosts servers that are written in Go with go-sdk. The author of a server writes a
// function [Server]. Clients use it like a server that runs as a process, with the same sessions,
// transports and protocol versions.
//
// # A message
//
// An instance is a running program with this package: an invocation on Lambda, or the one process
// on one machine. The instance that has a message executes it ([Backend.Deliver]). It makes the server
// anew and connects it to a transport that carries this one request, always in the modern
// era (2026-07-28). It writes the server's messages to the log; package bridge translates
// them for clients of the legacy era. An answer within a second is one write, together
// with all notifications before it. A longer request gets an item that says which instance
// executes it and until when: a lease, which the instance renews while the request runs.
// From then on the client may be told that the request was accepted. A request is executed
// once: an instance that finds an expired lease ends the request with an error.
//
// A message over a WebSocket, or for a stream of HTTP+SSE, has no answer in its own response.
// If the message may take long, the instance that gets it stores it, and another invocation
// executes it.
//
// # A call in rounds
//
// A handler that returns input requests ends its round. The client gets the questions, and the call
// becomes a suspended item (see storage.Item). When the last question is answered, an invocation
// executes the next round with the answers, in any instance. A handler that returns [Later] is
// called again later, by an alarm. Between rounds no instance runs, and everything may be deployed
// anew. The store says what an invocation has to do. An invocation may therefore come twice or
// late. Clients that poll for the call, and [Backend.Sweep], make up for an invocation that never
// comes.
//
// # What go-sdk gets wrong
//
// go-sdk rounds integers over 2^53, so this package gives it no ids and progress tokens of
// clients: each request has a connection of its own, with the same small id. go-sdk leaves some
// errors without a code; this package adds one. go-sdk makes results public for caches by default;
// see [Session.Options]. It announces changed lists too late for a server that ends with its answer;
// use [Session.Notify]. It calls handlers of subscriptions in the legacy era only; this package
// calls them in both. It has no field for a tool's task support; see [AsTask].
//
// # Cancel
//
// A cancelled call ends at once if it waits, or if the instance that got the cancel executes it.
// If another instance executes the call, it ends in the log at once, and its handler notices
// within two seconds. If that call began less than a second before, the cancel waits until the
// call has an item in the store.
package native
