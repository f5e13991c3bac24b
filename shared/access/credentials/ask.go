package credentials

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Asked says for whom, and for what, a user was asked to connect a third party. An Asked is
// sealed into the URL of the page, so that the URL reveals nothing. It does not prove who opens
// the URL.
type Asked struct {
	ID        string     `json:"i"` // elicitationId
	Tenant    string     `json:"t"`
	Principal string     `json:"p"`
	Server    string     `json:"v"`
	Provider  string     `json:"n"`
	Session   storage.ID `json:"s,omitempty"` // the session that is told when the user has finished; "" for none
	Until     int64      `json:"x"`
}

// askFor is how long the URL of a page from [Vault.Ask] can be opened.
const askFor = time.Hour

// Ask returns an error that has what a client needs to ask its user to connect third parties: its
// cause is a [storage.NotConnected]. Calls with the same arguments give the same elicitation ids
// until the user has connected.
func (v *Vault) Ask(of Asked, missing []Missing) error {
	u := &storage.NotConnected{}
	var titles []string
	how := ", which you have not connected"
	for _, m := range missing {
		title := v.title(m.Provider)
		if m.why != "" {
			return storage.Errorf(storage.Forbidden, "the server needs your access to %s: %s", title, m.why).Because(&storage.NotConnected{})
		}
		titles = append(titles, title)
		if m.rev != 0 {
			how = ", which has ended" // of several, at least one
		}
		of.Provider, of.Until = m.Provider, time.Now().Add(askFor).Unix()
		of.ID = v.askID(of, m.rev)
		if v.config.PublicURL != "" {
			u.Pages = append(u.Pages, storage.ConsentPage{
				ID: of.ID, URL: v.pageURL(of), Message: of.Server + " needs your access to " + title + ". Open the page to connect it.",
			})
		}
	}
	text := "the server needs your access to " + strings.Join(titles, " and ") + how
	if len(u.Pages) == 0 {
		return storage.Errorf(storage.Forbidden, "%s; ask who runs this endpoint to set it, with dormouse secrets set", text).Because(u)
	}
	for _, visit := range u.Pages {
		text += "; open " + visit.URL
	}
	return storage.Errorf(storage.Forbidden, "%s, and call again", text).Because(u)
}

func (v *Vault) title(provider string) string {
	return cmp.Or(v.config.Providers[provider].Title, provider)
}

func (v *Vault) pageURL(a Asked) string {
	return v.config.PublicURL + pathPage + "?" + url.Values{"e": {v.asks.SealJSON(a)}}.Encode()
}

// opened opens a sealed Asked. ok is false if sealed is not one, or if it has expired.
func (v *Vault) opened(sealed string) (a Asked, ok bool) {
	return a, v.asks.OpenJSON(sealed, &a) && time.Now().Unix() <= a.Until
}
