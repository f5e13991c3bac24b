package webpage

import (
	"net/http"
	"time"
)

// Cookies reads and sets cookies that only this host gets: their names begin with __Host-.
// Plain leaves that prefix out, for loopback without TLS, where browsers refuse it.
type Cookies struct{ Plain bool }

// Set sets a cookie that a browser keeps until it is older than maxAge. With a maxAge of 0 it removes
// the cookie.
func (c Cookies) Set(w http.ResponseWriter, name, value string, maxAge time.Duration) {
	seconds := int(maxAge.Seconds())
	if maxAge <= 0 {
		seconds = -1
	}
	http.SetCookie(w, &http.Cookie{
		Name: c.name(name), Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: !c.Plain, SameSite: http.SameSiteLaxMode,
	})
}

// Get returns the value of a cookie, "" for none.
func (c Cookies) Get(r *http.Request, name string) string {
	cookie, err := r.Cookie(c.name(name))
	if err != nil {
		return ""
	}
	return cookie.Value
}

func (c Cookies) name(name string) string {
	if c.Plain {
		return name
	}
	return "__Host-" + name
}
