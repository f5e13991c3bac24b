package local

import "github.com/dormouse-mcp/dormouse/infra/local/sockets"

// Usage is what the WebSocket APIs have counted since Run began.
type Usage struct {
	Relay  sockets.Usage // the API of runners
	Socket sockets.Usage // the API of WebSocket clients
}

func (m *machine) usage() Usage { return Usage{Relay: m.relay.Usage(), Socket: m.socket.Usage()} }
