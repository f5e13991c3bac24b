package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// errPrivate is the error of a connection to an address that is not public.
var errPrivate = errors.New("the address is not public; x-dormouse.remote.private permits it")

// errRedirect is the error of a redirect that is not followed.
var errRedirect = errors.New("the server redirects to another origin, which gets no secrets; write that URL into the servers file")

// errMoved is the error of a redirect that would send a GET in place of a message.
var errMoved = errors.New("the server redirects requests in a way that drops their body (HTTP 301, 302 or 303); write that URL into the servers file")

// Times of a connection.
const (
	dialWithin = 10 * time.Second
	// keepIdle is how long an idle connection is kept for later requests.
	keepIdle = 30 * time.Second
)

// newClient returns a client for public addresses, or for all if private is true. It uses no
// proxy: a proxy would resolve names itself, so checkAddress would not see the address.
func newClient(private bool) *http.Client {
	dialer := &net.Dialer{Timeout: dialWithin}
	if !private {
		dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return checkAddress(address)
		}
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: dialWithin, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: 8, IdleConnTimeout: keepIdle, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if was := via[0].URL; len(via) > 5 || r.URL.Scheme != was.Scheme || r.URL.Host != was.Host {
				return errRedirect
			}
			if r.Method != via[0].Method {
				return errMoved
			}
			return nil
		},
	}
}

// checkAddress returns errPrivate for a host and port that is not a public address. It
// gets the address to which the system connects, after names are resolved.
func checkAddress(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", errPrivate, address)
	}
	if ip := at.Addr().Unmap().WithZone(""); !public(ip) {
		return fmt.Errorf("%w: %s", errPrivate, ip)
	}
	return nil
}

// public reports whether an address is one of the public internet. Prefixes that embed an
// IPv4 address (NAT64, 6to4) count as that address.
func public(ip netip.Addr) bool {
	if ip.IsPrivate() || !ip.IsGlobalUnicast() {
		return false
	}
	b := ip.AsSlice()
	if ip.Is4() {
		switch {
		case b[0] == 0, b[0] >= 240, // this network; reserved
			b[0] == 100 && b[1]&0xc0 == 64,            // shared (RFC 6598), where clouds have metadata services too
			b[0] == 192 && b[1] == 0 && b[2] == 0,     // protocol assignments
			b[0] == 192 && b[1] == 0 && b[2] == 2,     // documentation
			b[0] == 198 && (b[1] == 18 || b[1] == 19), // benchmarks
			b[0] == 198 && b[1] == 51 && b[2] == 100, b[0] == 203 && b[1] == 0 && b[2] == 113:
			return false
		}
		return true
	}
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(ip): // NAT64; 64:ff9b:1::/48 is of a local network
		return public(netip.AddrFrom4([4]byte(b[12:16])))
	case b[0] == 0x20 && b[1] == 0x02: // 6to4
		return public(netip.AddrFrom4([4]byte(b[2:6])))
	case b[0] == 0x20 && b[1] == 0x01 && b[2] < 0x02, // Teredo and other protocol assignments
		b[0] == 0x20 && b[1] == 0x01 && b[2] == 0x0d && b[3] == 0xb8: // documentation
		return false
	}
	return b[0]&0xe0 == 0x20 // 2000::/3 is all that is assigned
}
