package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// visitor is who has signed in: the holder of an API key, or the user of the machine.
type visitor struct {
	Key string `json:"key,omitempty"` // "" for the user of the machine
}

func (v visitor) owner() bool { return v.Key == "" }

// shows returns the request with the visitor's key, and without the cookie, which is
// nobody else's.
func (v visitor) shows(r *http.Request) *http.Request {
	r.Header.Del("Cookie")
	r.Header.Del("Authorization")
	if v.Key != "" {
		r.Header.Set("Authorization", "Bearer "+v.Key)
	}
	return r
}

// How long an entry ticket and a cookie are good.
const (
	ticketLife = time.Minute
	cookieLife = 12 * time.Hour
)

// maxTickets bounds the tickets that nobody has used. The oldest gives way.
const maxTickets = 100

// door knows who may come in: who shows an entry ticket, once, or a cookie that it has
// sealed. Cookies outlive the program, tickets do not.
type door struct {
	seal   cipher.AEAD
	cookie string // its name: a browser sends cookies to all ports of a host

	mu      sync.Mutex
	tickets map[[32]byte]entry // by the ticket's SHA-256
}

// entry is whom a ticket lets in, and until when.
type entry struct {
	visitor
	until time.Time
}

func newDoor(secret []byte) *door {
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
	return &door{seal: seal, cookie: "dormouse-console-" + hex.EncodeToString(key[32:]), tickets: map[[32]byte]entry{}}
}

// ticket returns a new entry ticket for a visitor.
func (d *door) ticket(v visitor) string {
	text := rand.Text()
	d.mu.Lock()
	defer d.mu.Unlock()
	now, oldest := time.Now(), [32]byte{}
	for t, e := range d.tickets {
		if now.After(e.until) {
			delete(d.tickets, t)
		} else if first, ok := d.tickets[oldest]; !ok || e.until.Before(first.until) {
			oldest = t
		}
	}
	if len(d.tickets) >= maxTickets {
		delete(d.tickets, oldest)
	}
	d.tickets[sha256.Sum256([]byte(text))] = entry{v, now.Add(ticketLife)}
	return text
}

// redeem returns whom a ticket lets in, and ends it. ok is false if it is not good.
func (d *door) redeem(ticket string) (v visitor, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := sha256.Sum256([]byte(ticket))
	e, ok := d.tickets[sum]
	delete(d.tickets, sum)
	return e.visitor, ok && time.Now().Before(e.until)
}

// sealed is what a cookie holds.
type sealed struct {
	visitor
	Until int64 `json:"until"` // seconds since 1970
}

// let gives a visitor a cookie.
func (d *door) let(w http.ResponseWriter, r *http.Request, v visitor) {
	text, err := json.Marshal(sealed{v, time.Now().Add(cookieLife).Unix()})
	if err != nil {
		panic("console: " + err.Error()) // such a struct always encodes
	}
	d.set(w, r, base64.RawURLEncoding.EncodeToString(d.seal.Seal(nil, nil, text, nil)), int(cookieLife.Seconds()))
}

// forget takes the cookie away.
func (d *door) forget(w http.ResponseWriter, r *http.Request) { d.set(w, r, "", -1) }

func (d *door) set(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: d.cookie, Value: value, Path: Path, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		// A proxy in front speaks TLS to the browser; its page then has an origin of https.
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
}

// visitor returns who shows a good cookie.
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
