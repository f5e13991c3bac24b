package local

import "github.com/dormouse-mcp/dormouse/infra/local/sockets"

// Stages are the first path element in the URLs of the WebSocket APIs: relayStage for runners,
// socketStage for clients.
const (
	relayStage  = "relay"
	socketStage = "local"
)

// socketsOnly is the answer to other requests than WebSockets at the address of the clients' API.
const socketsOnly = "this address has WebSockets only, at /" + socketStage + "?server=NAME; dormouse list shows the addresses of servers over HTTP"

// openSockets creates the two WebSocket APIs. The argument elsewhere is what the API for clients
// answers if a request is for another path; "" stands for the answer of API Gateway.
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

// relayURL returns the URL to which runners connect; see runner.DialWebSocket.
func (m *machine) relayURL() string { return "ws+unix:" + m.folder.Socket("relay") + ":/" + relayStage }
