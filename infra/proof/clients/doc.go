// Package clients tests an MCP endpoint with real clients: the official SDKs, at pinned
// versions, each in its own language. It has only tests (build tag clients, by `make
// test-clients`), which install the pinned versions into .tools/clients.
//
// # The checks
//
// The folders ts, py and gosdk hold one program each; ts2 holds the second generation of the
// TypeScript SDK for the program in ts. All run the same checks under the same names
// against an endpoint that hosts server-everything (pinned in the folder everything), over
// Streamable HTTP, HTTP+SSE 2024-11-05 or WebSocket, as far as their SDK has it, and print
// one JSON line for each check. In the era without sessions (2026-07-28) they leave out
// the checks of features that the era does not have.
//
//	{"client":"ts-1.32.2","check":"echo-large","ok":true,"ms":12}
//
// The tests start the endpoint, run the programs and turn every line into a subtest. They run the
// programs against Dormouse, first one after the other and then all at once. The matrix also runs
// them against server-everything's own HTTP servers, as a control: it tells a broken client from a
// broken endpoint.
//
// # The polls
//
// Clients of 2025-11-25 survive an early end of their responses only under some rules (P1-P7,
// see package transport). They run the same checks against emulated Lambda functions that hold no
// response for longer than 100 ms, so that the clients poll for the rest.
//
// # The sign-in
//
// SDKs, mcp-remote, dormouse stdio and the inspector sign in, call a tool, and refresh a token that
// has expired (signin_test.go, programs_test.go). They sign in at Dormouse itself, which in some
// tests is behind stand-ins of API Gateway; at oidc-provider through Dormouse; or at oidc-provider
// itself. The same with Keycloak takes minutes (build tag keycloak, by `make test-idp`); Keycloak
// also exchanges tokens there. Clients register themselves, or publish a metadata document
// (document_test.go). Programs that cannot go through the pages use the command visit.
//
// # The bundles
//
// The official packer makes bundles of the servers in the folder mcpb, in Node, Python and Go. They
// are added in a terminal, which asks for their configuration, and called (bundles_test.go).
//
// # The matrix
//
// Every client, in each of its modes, meets a server of the legacy era
// (server-everything), one of both eras and one of 2026-07-28 only (folder eras), and
// runs the checks (matrix_test.go, build tag matrix, by `make matrix`, which writes the
// table of infra/proof/clients/results.md). The matrix also has fastmcp, rmcp (rust), the inspector's
// command line, and mcp-remote and dormouse stdio in front of the Go client. Each cell begins with a cold
// start. cold_test.go has a start that takes longer than clients wait for server/discover.
//
// # The releases
//
// Users keep old releases of the SDKs for long. The programs in the folder releases work with every
// release of their SDK since 2025. A program gets --url and --transport, reads steps from
// its stdin, one a line, and answers each with an outcome like those above. The steps are
// connect, list, call, slow (a call of 3 s), push (the server tells of a change of its
// tools, outside of a request), and close. What the SDK logs as a warning or an error
// fails the step. The server is slow to start, and sleeps before one of the calls.
//
// `make test-clients` runs the releases that once did not work with Dormouse, and `make
// matrix` all of them (releases_test.go). The latter writes a table of infra/proof/clients/results.md.
//
// The package does not test the wire format; shared/endpoint/transport does.
package clients
