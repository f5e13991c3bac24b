package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// visitor is who has signed in: the holder of an API key, a person who has signed in at the
// provider, or the user of the machine.
type visitor struct {
	Key string `json:"key,omitempty"` // the API key, or the person's token; "" for the user of the machine
}

func (v visitor) owner() bool { return v.Key == "" }

// shows puts the visitor's key into the header Authorization of r, removes the cookie, which only
// the console may see, and returns r.
func (v visitor) shows(r *http.Request) *http.Request {
	r.Header.Del("Cookie")
	r.Header.Del("Authorization")
	if v.Key != "" {
		r.Header.Set("Authorization", "Bearer "+v.Key)
	}
	return r
}

// cookieLife is how long a cookie is good.
const cookieLife = 12 * time.Hour

// door decides who may use the console: a visitor with an entry ticket, once, or with a cookie that
// was encrypted with the door's secret.
type door struct {
	seal *storage.Sealer
	// cookie is the name of the cookie. Consoles at two ports of a host need different names, because a
	// browser sends a cookie to all ports.
	cookie  string
	tickets *apikey.Tickets
}

func newDoor(secret []byte, tickets *apikey.Tickets) *door {
	seal, err := storage.NewSealer("console cookie", secret)
	if err != nil {
		panic("console: " + err.Error()) // Options.Secret is too short
	}
	sum := sha256.Sum256(append([]byte("dormouse name of the console cookie\x00"), secret...))
	return &door{seal: seal, cookie: "dormouse-console-" + hex.EncodeToString(sum[:4]), tickets: tickets}
}

// entryTo is the name for which entry tickets to the console are issued. No server has this name.
const entryTo = Path

// asTicket is the owner for which the visitor of an entry ticket is sealed. Cookies have no owner, so
// nobody who reads the store can use a ticket's visitor as a cookie.
var asTicket = []byte("entry ticket") //nolint:gochecknoglobals // a constant

// waiting is what the store keeps with an entry ticket.
type waiting struct {
	Visitor string `json:"visitor"` // encrypted, because it has the key
}

// ticket returns a new entry ticket for a visitor, and how long it can be redeemed. Cost:
// one write. Errors: Unavailable.
func (d *door) ticket(ctx context.Context, v visitor) (text string, life time.Duration, err error) {
	props := encode(waiting{d.seal.SealFor(asTicket, encode(v))})
	return d.tickets.Issue(ctx, storage.Identity{Principal: entryTo, Props: props}, entryTo)
}

// redeem returns the visitor of a ticket, which works only once. Cost: one write. Errors:
// Unauthenticated, Forbidden if it is a ticket to a server, Unavailable.
func (d *door) redeem(ctx context.Context, ticket string) (v visitor, err error) {
	who, err := d.tickets.Redeem(ctx, ticket, entryTo)
	if err != nil {
		return v, err
	}
	var w waiting
	if err := json.Unmarshal(who.Props, &w); err != nil {
		return v, err
	}
	text, ok, _ := d.seal.OpenFor(asTicket, w.Visitor)
	if !ok { // the secret was replaced meanwhile
		return v, storage.Errorf(storage.Unauthenticated, "this link is of another secret; make a new one")
	}
	return v, json.Unmarshal(text, &v)
}

// encode returns one of the structs of this file as JSON.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("console: " + err.Error()) // cannot fail: these structs always encode
	}
	return text
}

// sealed is the contents of a cookie.
type sealed struct {
	visitor
	Until int64 `json:"until"` // seconds since 1970
}

// let lets a visitor in: it sets the cookie.
func (d *door) let(w http.ResponseWriter, r *http.Request, v visitor) {
	d.set(w, r, d.seal.SealJSON(sealed{v, time.Now().Add(cookieLife).Unix()}), int(cookieLife.Seconds()))
}

// forget deletes the cookie in the visitor's browser.
func (d *door) forget(w http.ResponseWriter, r *http.Request) { d.set(w, r, "", -1) }

func (d *door) set(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: d.cookie, Value: value, Path: prefix(r) + Path, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		// A proxy may speak TLS to the browser, and HTTP to this program.
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
}

// visitor returns the visitor of a request with a valid cookie.
func (d *door) visitor(r *http.Request) (visitor, bool) {
	for _, c := range r.CookiesNamed(d.cookie) {
		var s sealed
		if d.seal.OpenJSON(c.Value, &s) && time.Now().Unix() < s.Until {
			return s.visitor, true
		}
	}
	return visitor{}, false
}
