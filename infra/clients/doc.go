// Package clients proves an MCP endpoint with real clients: the official SDKs of other people,
// at pinned versions, each in its own language.
//
// ts, py and gosdk hold one program each. All three run the same checks under the same names
// against an endpoint that hosts server-everything (pinned in everything) and print one JSON line
// a check:
//
//	{"client":"ts-1.32.2","check":"echo-256k","ok":true,"ms":12}
//
// The tests here (build tag clients, run by `make test-clients`) install what is pinned into
// .tools/clients, start the endpoint, run the programs one after the other and turn every line
// into a subtest. They run twice: against Dormouse, and against server-everything's own
// Streamable HTTP server as the control that tells a broken client from a broken endpoint.
//
// The package does not test the wire itself (shared/front does), nor other transports than
// Streamable HTTP.
package clients
