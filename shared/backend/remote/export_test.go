package remote

import "net/http"

// Reach replaces what reaches servers, so that a test in virtual time needs no network.
func (c *Servers) Reach(t http.RoundTripper) { c.private.Transport = t }
