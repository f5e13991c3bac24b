package local

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are the addresses of the reverse proxies in front of a machine.
type Proxies []netip.Prefix

// ReadProxies parses addresses such as 127.0.0.1, and networks such as 10.0.0.0/8.
func ReadProxies(texts []string) (all Proxies, err error) {
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if address, alone := netip.ParseAddr(text); alone == nil {
			network, err = netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("--proxy is %q; want the address of a reverse proxy, such as 127.0.0.1, or its network, such as 10.0.0.0/8", text)
		}
		all = append(all, network.Masked())
	}
	return all, nil
}

// behind returns a handler that sets RemoteAddr to the address of the client. If a request comes
// from one of the proxies, it takes the client's address from X-Forwarded-For. In requests of all
// other peers, it ignores that header.
func (p Proxies) behind(next http.Handler) http.Handler {
	if len(p) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from, ok := p.client(r); ok {
			r = r.WithContext(r.Context())
			r.RemoteAddr = net.JoinHostPort(from.String(), "0")
		}
		next.ServeHTTP(w, r)
	})
}

// client returns the client's address from X-Forwarded-For. Each proxy appends the address of its
// own peer. So the client is the last address that is not a proxy; the client may have written all
// addresses before it. ok is false if the request does not come from a proxy, or if the proxy names
// no address.
func (p Proxies) client(r *http.Request) (from netip.Addr, ok bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !p.has(peer.Addr()) {
		return from, false
	}
	reported := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, text := range slices.Backward(reported) {
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			break
		}
		if from, ok = address.Unmap().WithZone(""), true; !p.has(from) {
			break
		}
	}
	return from, ok
}

func (p Proxies) has(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(n netip.Prefix) bool { return n.Contains(a.Unmap().WithZone("")) })
}
