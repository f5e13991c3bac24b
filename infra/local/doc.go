// Package local hosts the servers of a servers file on one machine, as AWS does: it is
// what `dormouse run` does.
//
// [Run] makes the handlers of the functions in this process (inside.go): a request goes
// from net/http to the front, a runner's frame from its WebSocket to the relay's handler,
// and a wait is woken by the store that they share. The handlers are those that the
// functions wire on Lambda, and keep nothing that a message depends on. Boxes are child
// processes, each with a runner.
//
// With [FunctionsProcess] the functions are programs of their own (emulated.go), behind
// stand-ins for API Gateway (package apigw) and Lambda (package lambda) with AWS's limits.
//
//	                 inside                          emulated
//	client ─HTTP──▶  front.HTTP                      apigw ─event─▶ lambda ─▶ http
//	client ─WS────▶  sockets ─▶ front.Socket         sockets ─▶ apigw ─▶ lambda ─▶ socket
//	runner ─WS────▶  sockets ─▶ relay.Handler        sockets ─▶ apigw ─▶ lambda ─▶ relay
//	timer, task ──▶  relay.Sweeper                   lambda ─▶ sweep
//
// Local sockets authenticate their callers: a runner shows a pass that the host sealed,
// the control socket wants a key that is derived from the data folder's secret, and the
// stand-ins for AWS's services are served below a secret path.
package local
