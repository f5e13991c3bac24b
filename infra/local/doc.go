// Package local hosts the MCP servers of a servers file on one machine, for `dormouse run`.
//
// [Run] builds the functions' handlers in this process (inprocess.go). A client's request goes
// from net/http to package transport, and a runner's frame goes from its WebSocket to the relay's
// handler. All handlers share one store, which wakes a handler that waits for an event. The
// handlers are the same as on Lambda, and no message depends on anything they keep in memory. A
// box is a child process with a runner, or, if only the user of this machine can call, a part of
// this process.
//
//	client ─HTTP──▶  transport.HTTP
//	client ─WS────▶  sockets ─▶ transport.Socket
//	runner ─WS────▶  sockets ─▶ relayserver.Handler
//	timer, task ──▶  relayserver.Sweeper
//
// Tests replace the handlers by the programs of the functions, behind an emulation of AWS
// ([Config].Functions, package emulator).
//
// The local sockets authenticate their callers. A runner sends a token that this process has
// encrypted. The control socket requires a key that is derived from the data folder's secret.
package local
