package transport

import (
	"encoding/json"
	"net/http"
)

// ticket issues a ticket for one WebSocket connection to the server:
//
//	POST /<server>/ticket   200 {"ticket":"…","expires_in":60}
//
// or to a group, at /ticket and /g/<group>/ticket.
//
// The body of the request is not read.
func (x *exchange) ticket() error {
	who := x.caller.Identity
	who.Members = x.rules()
	ticket, life, err := x.opts.Tickets.Issue(x.ctx(), who, x.caller.Server.Name)
	if err != nil {
		return err
	}
	body, err := json.Marshal(struct {
		Ticket  string `json:"ticket"`
		Seconds int    `json:"expires_in"`
	}{ticket, int(life.Seconds())})
	if err != nil {
		return err
	}
	x.w.Header().Set("Cache-Control", "no-store")
	x.json(http.StatusOK, body)
	return nil
}
