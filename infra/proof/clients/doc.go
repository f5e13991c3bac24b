// Package clients proves an MCP endpoint with real clients: the official SDKs of other people,
// at pinned versions, each in its own language. It runs only as tests (build tag clients, by
// `make test-clients`), which install what is pinned into .tools/clients. There are two lists, and the
// matrix.
//
// # The checks
//
// ts, py and gosdk hold one program each; ts2 holds the second generation of the TypeScript SDK for
// that in ts. All run the same checks under the same names against an endpoint that hosts
// server-everything (pinned in everything), over Streamable HTTP, HTTP+SSE 2024-11-05 or WebSocket as
// far as their SDK has it, and print one JSON line a check. In the era without sessions (2026-07-28)
// they leave out what it has not got.
//
//	{"client":"ts-1.32.2","check":"echo-large","ok":true,"ms":12}
//
// The tests start the endpoint, run the programs and turn every line into a subtest. They run
// against Dormouse, one program after the other and then all of them at once, and against
// server-everything's own HTTP servers as the control that tells a broken client from a broken
// endpoint. It has no WebSocket server.
//
// # The polls
//
// The rules under which clients survive being sent away (P1-P7, see package front) are held against
// clients that are sent away hundreds of times. The endpoint is packages front and session over
// SQLite, made anew for each request, with a scripted server behind them (pollserver_test.go). What
// it saw and sent is checked (pollledger_test.go), and so is what the clients say: the programs take
// a plan of calls and print a line with all that came of each. Limits are shortened to milliseconds,
// except for go-sdk, which also sits through two hours of virtual time with the default ones
// (polltime_test.go, in every test run).
//
// # The matrix
//
// Every client, in each of its modes, meets a server of the legacy era (server-everything), one of both
// and one of 2026-07-28 only (eras is both), and runs the checks (matrix_test.go, build tag matrix, by
// `make matrix`, which writes the table of docs/clients.md). Here are also fastmcp, rmcp (rust), the
// inspector's command line and mcp-remote, in front of the Go client. Each cell begins with a cold
// start; cold_test.go has one that takes longer than clients wait for server/discover.
//
// The package does not test the wire itself; shared/front does.
package clients
