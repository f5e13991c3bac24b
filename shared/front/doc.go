// Package front is HTTP in and out: Streamable HTTP as MCP 2025-03-26, 2025-06-18
// and 2025-11-25 have it (basic/transports), for every configured server at
// /<server>/mcp, and HTTP+SSE of 2024-11-05 at /<server>/sse (see route.go for all
// paths). Clients of 2026-07-28 come to /<server>/mcp too; modern.go says how they
// are told apart and served. It hides headers, statuses, server-sent events, CORS and the
// polling contract from the rest, and holds the one table from our errors to HTTP
// statuses and JSON-RPC codes. WebSocket has an entrance of its own, [Socket], which says
// what a client's author has to know. Package lambdafront puts both behind API Gateway.
//
// It executes nothing, stores nothing and keeps nothing between two requests: a
// session, its streams and their cursors are package session's. It does not know
// who a caller is ([Authenticator] does), nor what a message means beyond
// what a transport has to: its kind, its id, initialize, and the protocol version.
//
// # The polling contract
//
// Clients of the legacy era can be told to go away and come back (Last-Event-ID).
// They survive it only under these rules, which the tests name one by one:
//
//   - P1 Every event stream begins with an event that has an id, a retry and an
//     empty data line.
//   - P2 That id is another one on every response, for the same cursor too.
//   - P3 A poll of a stream is never answered with 429, a status over 499 or an
//     empty body: in trouble it is told a longer retry.
//   - P4 A response is held while a request runs, so that the polls stay few.
//   - P5 The same holds for the common stream; else it is 405 from the start.
//   - P6 The retry is sent on every response.
//   - P7 No stream is closed before its first event has been flushed.
package front
