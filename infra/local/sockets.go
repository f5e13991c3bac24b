package local

import "github.com/dormouse-mcp/dormouse/infra/local/sockets"

// Stages are the first path element in the URLs of the WebSocket APIs: relayStage for runners,
// socketStage for clients.
const (
	relayStage  = "relay"
	socketStage = "local"
)

// openSockets creates the two WebSocket APIs.
func (m *machine) openSockets(runners, clients sockets.Routes, limits sockets.Limits) {
	open := func(name, stage string, routes sockets.Routes) *sockets.API {
		return sockets.New(sockets.Config{
			Name: name, Stage: stage, Routes: routes, Limits: limits,
			Opened: m.ledger.Opened, Closed: m.ledger.Closed, Logger: m.log,
		})
	}
	m.relay, m.socket = open("relay", relayStage, runners), open("socket", socketStage, clients)
	m.closers = append(m.closers, m.relay.Close, m.socket.Close)
}

// relayURL returns the URL to which runners connect; see runner.DialWebSocket.
func (m *machine) relayURL() string { return "ws+unix:" + m.folder.Socket("relay") + ":/" + relayStage }
