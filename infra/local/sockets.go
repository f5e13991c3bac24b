package local

import "github.com/dormouse-mcp/dormouse/infra/local/sockets"

// Stages of the WebSocket APIs for runners and for clients.
const (
	relayStage  = "relay"
	socketStage = "local"
)

// socketsOnly says what the address of the WebSocket API for clients is for.
const socketsOnly = "this address has WebSockets only, at /" + socketStage + "?server=NAME; dormouse list shows the addresses of servers over HTTP"

// openSockets creates the two WebSocket APIs. The API for runners is served on a unix
// socket, where a runner shows a pass. At the address for clients, elsewhere answers requests for
// other paths; "" is the answer of API Gateway.
func (m *machine) openSockets(runners, clients sockets.Routes, limits sockets.Limits, elsewhere string) {
	open := func(name, stage, elsewhere string, routes sockets.Routes) *sockets.API {
		return sockets.New(sockets.Config{
			Name: name, Stage: stage, Routes: routes, Elsewhere: elsewhere, Limits: limits,
			Opened: m.ledger.Opened, Closed: m.ledger.Closed, Logger: m.log,
		})
	}
	m.relay, m.socket = open("relay", relayStage, "", runners), open("socket", socketStage, elsewhere, clients)
	m.closers = append(m.closers, m.relay.Close, m.socket.Close)
}

// relayURL is where runners connect; see runner.DialWebSocket.
func (m *machine) relayURL() string { return "ws+unix:" + m.folder.Socket("relay") + ":/" + relayStage }
