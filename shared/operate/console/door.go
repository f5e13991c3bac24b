package console

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// visitor is who has signed in: the holder of an API key, a user of the provider, or the
// user of the machine.
type visitor struct {
	Key string `json:"key,omitempty"` // or the token of a user; "" for the user of the machine
}

func (v visitor) owner() bool { return v.Key == "" }

// shows returns the request with the visitor's key, and without the cookie, which is for
// the console only.
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

// door decides who may enter: a visitor with an entry ticket, once, or with a cookie that
// a door has sealed. Any process that has the secret and the store can be the door.
type door struct {
	seal    cipher.AEAD
	cookie  string // its name: a browser sends cookies to all ports of a host
	tickets *apikey.Tickets
}

func newDoor(secret []byte, tickets *apikey.Tickets) *door {
	key, err := hkdf.Key(sha256.New, secret, nil, "dormouse console cookie", 32+4)
	if err != nil {
		panic("console: " + err.Error()) // only for too long keys
	}
	block, err := aes.NewCipher(key[:32])
	if err != nil {
		panic("console: " + err.Error()) // only for keys of other sizes
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("console: " + err.Error()) // only for other ciphers
	}
	return &door{seal: seal, cookie: "dormouse-console-" + hex.EncodeToString(key[32:]), tickets: tickets}
}

// In the store, entry tickets to the console stand beside those to servers. No server has
// this name.
const entryTo = Path

// asTicket is the additional data with which ticket seals a visitor for the store. So a
// reader of the store cannot use the sealed visitor as a cookie.
var asTicket = []byte("entry ticket") //nolint:gochecknoglobals // a constant

// waiting is what the store keeps with an entry ticket. The store cannot read the key in
// it.
type waiting struct {
	Visitor []byte `json:"visitor"` // sealed
}

// ticket returns a new entry ticket for a visitor, and how long it can be redeemed. Cost:
// one write. Errors: Unavailable.
func (d *door) ticket(ctx context.Context, v visitor) (text string, life time.Duration, err error) {
	props := encode(waiting{d.seal.Seal(nil, nil, encode(v), asTicket)})
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
	text, err := d.seal.Open(nil, nil, w.Visitor, asTicket)
	if err != nil { // the secret was replaced meanwhile
		return v, storage.Errorf(storage.Unauthenticated, "this link is of another secret; make a new one").Because(err)
	}
	return v, json.Unmarshal(text, &v)
}

// encode returns one of the structs of this file as JSON.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("console: " + err.Error()) // they always encode
	}
	return text
}

type sealed struct {
	visitor
	Until int64 `json:"until"` // seconds since 1970
}

func (d *door) let(w http.ResponseWriter, r *http.Request, v visitor) {
	text := encode(sealed{v, time.Now().Add(cookieLife).Unix()})
	d.set(w, r, base64.RawURLEncoding.EncodeToString(d.seal.Seal(nil, nil, text, nil)), int(cookieLife.Seconds()))
}

// forget deletes the cookie in the visitor's browser.
func (d *door) forget(w http.ResponseWriter, r *http.Request) { d.set(w, r, "", -1) }

func (d *door) set(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: d.cookie, Value: value, Path: prefix(r) + Path, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		// A proxy in front speaks TLS to the browser; the page then has an origin of
		// https.
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
}

// visitor returns the visitor of a request with a valid cookie.
func (d *door) visitor(r *http.Request) (visitor, bool) {
	for _, c := range r.CookiesNamed(d.cookie) {
		raw, err := base64.RawURLEncoding.DecodeString(c.Value)
		if err != nil {
			continue
		}
		text, err := d.seal.Open(nil, nil, raw, nil)
		if err != nil {
			continue
		}
		var s sealed
		if json.Unmarshal(text, &s) == nil && time.Now().Unix() < s.Until {
			return s.visitor, true
		}
	}
	return visitor{}, false
}
