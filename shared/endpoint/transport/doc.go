// Package transport is the endpoint of all configured servers, over HTTP and over WebSocket. It
// has the only table from our errors to HTTP statuses and JSON-RPC codes.
//
// A transport speaks to a [sessions.Endpoint], without knowing whether it is one server or
// several at one address (package aggregate). An HTTP request goes down through these files:
//
//	http.go           the handler; options.go has its Options
//	serve.go          the checks that all requests share, and the paths
//	post.go, get.go   Streamable HTTP with sessions: MCP 2025-03-26, 2025-06-18 and 2025-11-25
//	httpsse.go        HTTP+SSE: MCP 2024-11-05
//	modernserve.go    the modern era: MCP 2026-07-28, and tasks, its extension
//	validate.go       the order of all checks
//	exchange.go       one request and its answer
//	stream.go         server-sent events
//
// versions.go tells the clients of the two eras apart. A WebSocket goes through [Socket],
// whose comment says what the author of a client has to know. Package apigateway puts both
// behind API Gateway.
//
// Package transport executes and stores nothing: package sessions serves sessions, and the store
// keeps them. Between two requests only a [Socket] keeps something: records of connections. [Authenticator] says who a
// caller is. Of a message, transport reads only what a transport needs: its kind, its id,
// initialize, and the protocol version.
//
// # The polling contract
//
// The endpoint may end the response to a client of the legacy era early. The client then
// comes back with Last-Event-ID. Clients survive that only under these rules, which the
// tests name one by one:
//
//   - P1 For a client of 2025-11-25 every event stream begins with a priming event, which has
//     an id and an empty data line. No other client gets one, and neither does the answer to
//     initialize. An older client gets such an event in one case: at the end of a response that
//     was held as long as possible and had no other event. Without an id the client could not
//     come back for its answer.
//   - P2 A priming event has a new id in every response, even for the same cursor.
//   - P3 A poll of a stream is never answered with 429, a status over 499 or an empty body:
//     in trouble the client gets a longer retry, or a comment if its version knows no retry.
//   - P4 A response is held while a request runs, so that polls are few.
//   - P5 The standalone stream is held too; a server that has nothing to push answers 405 from
//     the start.
//   - P6 For a client of 2025-11-25 the event that ends a response early has a retry. No other
//     event has one, and no other client gets one.
//   - P7 No stream is closed before its first event has been flushed.
//
// An event with a message has the name "message", and a priming event has none. Some clients
// drop a message without a name, and some fail at an event of another name.
//
// Clients of 2025-11-25 poll (SEP-1699). Clients of older versions fail at an event that has no
// message, or at a retry. The endpoint holds their responses until the answer. A client of an
// older version that is cut off before its first event has no id to come back with.
package transport
