// Package local hosts the servers of a servers file on one machine, as AWS does. It is the
// implementation of `dormouse run`.
//
// [Run] builds the functions' handlers in this process (inprocess.go). A client's
// request goes from net/http to package transport, and a runner's frame goes from its
// WebSocket to the relay's handler. All handlers share one store, which wakes a waiting
// handler. The handlers are the same as on Lambda, and no message depends on anything they
// keep in memory. Boxes are child processes, each with a runner.
//
//	client ─HTTP──▶  transport.HTTP
//	client ─WS────▶  sockets ─▶ transport.Socket
//	runner ─WS────▶  sockets ─▶ relay.Handler
//	timer, task ──▶  relay.Sweeper
//
// Tests replace the handlers by the functions' programs, behind an imitation of AWS
// ([Config].Functions, package emulator).
//
// Local sockets authenticate their callers. A runner shows a pass that the host sealed.
// The control socket requires a key that is derived from the data folder's secret.
package local
