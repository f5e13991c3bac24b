// Package local hosts the servers of a servers file on one machine, as AWS does. It is the
// implementation of `dormouse run`.
//
// By default [Run] builds the functions' handlers in this process (inside.go). A client's
// request goes from net/http to package front, and a runner's frame goes from its
// WebSocket to the relay's handler. All handlers share one store, which wakes a waiting
// handler. The handlers are the same as on Lambda, and no message depends on anything they
// keep in memory. Boxes are child processes, each with a runner.
//
// With [FunctionsProcess] the functions are programs of their own (emulated.go). Stand-ins
// for API Gateway (package apigw) and Lambda (package lambda) invoke them, with AWS's
// limits.
//
//	                 inside                          emulated
//	client ─HTTP──▶  front.HTTP                      apigw ─event─▶ lambda ─▶ http
//	client ─WS────▶  sockets ─▶ front.Socket         sockets ─▶ apigw ─▶ lambda ─▶ socket
//	runner ─WS────▶  sockets ─▶ relay.Handler        sockets ─▶ apigw ─▶ lambda ─▶ relay
//	timer, task ──▶  relay.Sweeper                   lambda ─▶ sweep
//
// Local sockets authenticate their callers. A runner shows a pass that the host sealed.
// The control socket requires a key that is derived from the data folder's secret. The
// stand-ins for AWS's services are served below a secret path.
package local
