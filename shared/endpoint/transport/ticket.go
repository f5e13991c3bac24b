package transport

import (
	"encoding/json"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// ticket issues a ticket for one WebSocket connection to the server:
//
//	POST /<server>/ticket   200 {"ticket":"…","expires_in":60}
//
// or to a group, at /ticket and /g/<group>/ticket.
//
// The body of the request is not read.
func (x *exchange) ticket() error {
	c := x.caller
	who := storage.Identity{
		Tenant: c.Tenant, Principal: c.Principal, Credential: c.Credential, Props: c.Props, Scopes: c.Scopes, Scoped: c.Scoped, ToolRules: c.ToolRules,
	}
	who.Members = x.rules()
	ticket, life, err := x.opts.Tickets.Issue(x.ctx(), who, c.Server.Name)
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
