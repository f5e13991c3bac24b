package transport

import (
	"net/http"
	"time"
)

// HTTP is the endpoint of all servers, an http.Handler. It keeps no state between requests, and
// is safe for concurrent use.
type HTTP struct{ opts Options }

// New makes an HTTP. Options that are zero get their defaults.
func New(opts Options) *HTTP { return &HTTP{opts: opts.withDefaults()} }

// ServeHTTP answers one request, which takes up to [Options].Limit. It logs a panic, and answers
// 500 or, if the response has begun, aborts it with http.ErrAbortHandler.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := h.exchange(w, r)
	defer x.finish()
	if err := x.serve(); err != nil {
		x.refuse(err)
	}
}

func (h *HTTP) exchange(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{opts: &h.opts, w: w, r: r, begun: time.Now()}
	if h.opts.Meter != nil {
		x.sent = &counter{ResponseWriter: w}
		x.w = x.sent
	}
	return x
}
