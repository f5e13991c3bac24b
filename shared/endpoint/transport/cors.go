package transport

import (
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/address"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// admit checks Host and Origin before anything else, and sets the CORS headers of every answer.
// The check prevents DNS rebinding (MCP 2025-11-25, basic/transports, "Security Warning"): a web
// page makes its own domain name resolve to its reader's machine, to reach an endpoint there.
func (x *exchange) admit() error {
	h := x.w.Header()
	h.Add("Vary", "Origin")
	if err := x.opts.checkOrigin(x.r); err != nil {
		return err
	}
	if origin := x.r.Header.Get("Origin"); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", wire.HeaderSessionID+", WWW-Authenticate")
	}
	return nil
}

// checkOrigin checks Host and Origin. A Host that is not served gets an error that names the
// setting which would serve it.
func (o *Options) checkOrigin(r *http.Request) error {
	if !ServesHost(o.AllowedHosts, r.Host) {
		p := refusal(http.StatusForbidden, storage.Invalid, wire.CodeServer, wire.Clip(r.Host)+" is not served: start with --public-url https://"+wire.Clip(r.Host))
		p.operator = true
		return p
	}
	origins := r.Header.Values("Origin")
	if len(origins) > 1 || len(origins) == 1 && !allowedOrigin(o.AllowedOrigins, origins[0], r.Host) {
		return refusal(http.StatusForbidden, storage.Invalid, wire.CodeServer,
			"pages of this Origin may not call; start dormouse with --allow-origin "+wire.Clip(origins[0]))
	}
	return nil
}

// preflight answers OPTIONS, on every path.
func (x *exchange) preflight() {
	h := x.w.Header()
	h.Set("Allow", methods)
	if h.Get("Access-Control-Allow-Origin") != "" {
		h.Set("Access-Control-Allow-Methods", methods)
		h.Set("Access-Control-Allow-Headers", allowedHeaders(x.r.Header, "Content-Type", "Accept", "Authorization", wire.HeaderSessionID,
			wire.HeaderProtocolVersion, wire.HeaderLastEventID, wire.HeaderMethod, wire.HeaderName, wire.HeaderIdempotencyKey))
		h.Set("Access-Control-Max-Age", "86400")
	}
	x.empty(http.StatusNoContent)
}

// allowedHeaders returns the headers that a page may send: the headers in names, and those that the page
// asks for. Pages ask for headers that their libraries add, and for headers that repeat arguments of a
// tool. Only the server knows the names of the latter. allowedHeaders leaves out headers that only a
// browser sets.
func allowedHeaders(h http.Header, names ...string) string {
	const most, longest = 64, 128
	for _, name := range strings.Split(strings.Join(h.Values("Access-Control-Request-Headers"), ","), ",") {
		name = strings.TrimSpace(name)
		odd := strings.ContainsFunc(name, func(c rune) bool {
			return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}*`, c)
		})
		known := slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
		if name != "" && !odd && !known && len(name) <= longest && len(names) < most && !forbiddenHeader.MatchString(name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// forbiddenHeader matches the headers of requests that a page cannot set (Fetch Standard,
// "forbidden request-header").
var forbiddenHeader = regexp.MustCompile(`(?i)^(accept-charset|accept-encoding|access-control-.*|connection|content-length|cookie2?|date|dnt|expect|host|keep-alive|origin|referer|set-cookie|te|trailer|transfer-encoding|upgrade|via|proxy-.*|sec-.*)$`)

// ServesHost reports whether a Host is among the allowed ones; see [Options.AllowedHosts].
func ServesHost(allowed []string, host string) bool {
	if len(allowed) == 0 {
		return NamesLoopback(host)
	}
	name := hostname(host)
	return slices.ContainsFunc(allowed, func(a string) bool {
		return a == "*" || strings.EqualFold(a, host) || strings.EqualFold(hostname(a), name) && !hasPort(a)
	})
}

func allowedOrigin(allowed []string, origin, host string) bool {
	if slices.ContainsFunc(allowed, func(a string) bool {
		return a == "*" || strings.EqualFold(strings.TrimSuffix(a, "/"), origin)
	}) {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return false
	}
	name, own := hostname(u.Host), hostname(host)
	same := strings.EqualFold(name, own) || address.Loopback(name) && address.Loopback(own)
	return same && portOf(u.Host, u.Scheme) == portOf(host, u.Scheme)
}

func portOf(host, scheme string) string {
	if _, port, err := net.SplitHostPort(host); err == nil {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[scheme]
}

// NamesLoopback reports whether the Host of a request means this machine, for every client
// that resolves it. The Host may have a port.
func NamesLoopback(host string) bool { return address.Loopback(hostname(host)) }

// hostname returns a Host without its port; an IPv6 address loses its brackets.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

func hasPort(host string) bool {
	_, _, err := net.SplitHostPort(host)
	return err == nil
}
