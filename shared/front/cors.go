package front

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// admit checks Host and Origin, before anything else is looked at: a web page
// must not reach an endpoint on its reader's machine by a name that it made
// resolve there (DNS rebinding; MCP 2025-11-25, basic/transports, "Security
// Warning"). It sets the CORS headers that every answer carries.
func (x *exchange) admit() error {
	h := x.w.Header()
	h.Add("Vary", "Origin")
	if !allowedHost(x.opts.AllowedHosts, x.r.Host) {
		return refusal(http.StatusForbidden, session.Invalid, wire.CodeServer, "this Host is not served; add it to the allowed hosts, or use another address")
	}
	origins := x.r.Header.Values("Origin")
	if len(origins) == 0 {
		return nil
	}
	if len(origins) > 1 || !allowedOrigin(x.opts.AllowedOrigins, origins[0], x.r.Host) {
		return refusal(http.StatusForbidden, session.Invalid, wire.CodeServer, "pages of this Origin may not call; add it to the allowed origins")
	}
	h.Set("Access-Control-Allow-Origin", origins[0])
	h.Set("Access-Control-Expose-Headers", wire.HeaderSessionID+", WWW-Authenticate")
	return nil
}

// preflight answers OPTIONS, on every path.
func (x *exchange) preflight() {
	h := x.w.Header()
	h.Set("Allow", methods)
	if h.Get("Access-Control-Allow-Origin") != "" {
		h.Set("Access-Control-Allow-Methods", methods)
		h.Set("Access-Control-Allow-Headers", strings.Join(append([]string{
			"Content-Type", "Accept", "Authorization", wire.HeaderSessionID, wire.HeaderProtocolVersion,
			wire.HeaderLastEventID, wire.HeaderMethod, wire.HeaderName,
		}, paramHeaders(x.r.Header)...), ", "))
		h.Set("Access-Control-Max-Age", "86400")
	}
	x.empty(http.StatusNoContent)
}

// paramHeaders are the headers a page asks for that carry arguments of a tool.
// Their names are the server's, so they can only be allowed as they are asked for.
func paramHeaders(h http.Header) (names []string) {
	for _, name := range strings.Split(strings.Join(h.Values("Access-Control-Request-Headers"), ","), ",") {
		name = strings.TrimSpace(name)
		odd := strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' })
		if param, ok := strings.CutPrefix(strings.ToLower(name), "mcp-param-"); ok && param != "" && !odd && len(name) <= 128 {
			names = append(names, name)
		}
	}
	return names
}

func allowedHost(allowed []string, host string) bool {
	name := hostname(host)
	if len(allowed) == 0 {
		return loopback(name)
	}
	return slices.ContainsFunc(allowed, func(a string) bool {
		return a == "*" || strings.EqualFold(a, host) || strings.EqualFold(hostname(a), name) && !hasPort(a)
	})
}

func allowedOrigin(allowed []string, origin, host string) bool {
	if len(allowed) > 0 {
		return slices.ContainsFunc(allowed, func(a string) bool {
			return a == "*" || strings.EqualFold(strings.TrimSuffix(a, "/"), origin)
		})
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return false
	}
	port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	bare := func(hostport string) string { return strings.TrimSuffix(strings.ToLower(hostport), port) }
	return loopback(hostname(u.Host)) || bare(u.Host) == bare(host)
}

func loopback(name string) bool {
	return name == "127.0.0.1" || name == "::1" || strings.EqualFold(name, "localhost")
}

// hostname is a Host without its port, and an IPv6 address without brackets.
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
