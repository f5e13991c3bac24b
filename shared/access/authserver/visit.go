package authserver

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// visitor is a user who has signed in for a page of this endpoint, and not for a client.
type visitor struct {
	Tenant    string `json:"t"`
	Principal string `json:"p"`
	Server    string `json:"v"`
	Until     int64  `json:"x"`
}

const (
	cookieVisit = "dm_visit"
	visitFor    = 15 * time.Minute
)

// Visit has the user of a browser sign in, for a page about a server. The argument back is the path
// and query, of this endpoint, to which the browser comes afterwards. [Server.Visitor] then returns
// the user.
func (b *Server) Visit(w http.ResponseWriter, r *http.Request, server, back string) error {
	if !slices.Contains(b.servers, server) || !strings.HasPrefix(back, "/") || strings.HasPrefix(back, "//") || strings.ContainsRune(back, '\\') {
		return bad("invalid_request", "there is no such server")
	}
	return b.begins(w, r, request{Server: server}, back)
}

// Visitor returns the user of this browser, if [Server.Visit] has signed them in for this server
// in the last 15 minutes.
func (b *Server) Visitor(r *http.Request, server string) (storage.Identity, bool) {
	var v visitor
	if !b.seals[forVisit].OpenJSON(b.cookies.Get(r, cookieVisit), &v) || v.Server != server || time.Now().Unix() > v.Until {
		return storage.Identity{}, false
	}
	return storage.Identity{Tenant: v.Tenant, Principal: v.Principal}, true
}

// arrived remembers in the browser who has signed in, and sends the browser to a page.
func (b *browsers) arrived(w http.ResponseWriter, r *http.Request, c code, page string) {
	v := visitor{c.Tenant, c.Principal, c.Request.Server, time.Now().Add(visitFor).Unix()}
	b.cookies.Set(w, cookieVisit, b.seals[forVisit].SealJSON(v), visitFor)
	http.Redirect(w, r, page, http.StatusSeeOther)
}
