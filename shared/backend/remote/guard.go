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

	"github.com/dormouse-mcp/dormouse/shared/core/address"
)

// errPrivate is the error of a connection to an address that is not public.
var errPrivate = errors.New("the address is not public; x-dormouse.remote.private permits it")

// errRedirect is the error of a redirect that is not followed.
var errRedirect = errors.New("the server redirects to another origin, which gets no secrets; write that URL into the servers file")

// errMoved is the error of a redirect that would send a GET in place of a message.
var errMoved = errors.New("the server redirects requests in a way that drops their body (HTTP 301, 302 or 303); write that URL into the servers file")

// Timeouts of connections.
const (
	dialWithin = 10 * time.Second
	// keepIdle is how long an idle connection is kept for later requests.
	keepIdle = 30 * time.Second
)

// newClient returns a client for public addresses, or for all if private is true. The client
// uses no proxy: a proxy would resolve names itself, and checkAddress would not see the
// address.
func newClient(private bool) *http.Client {
	dialer := &net.Dialer{Timeout: dialWithin}
	if !private {
		dialer.ControlContext = func(_ context.Context, _, to string, _ syscall.RawConn) error {
			return checkAddress(to)
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

// checkAddress returns errPrivate unless hostPort has a public IP address. Names are resolved before:
// the connection goes to this very address.
func checkAddress(hostPort string) error {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return fmt.Errorf("%w: %s", errPrivate, hostPort)
	}
	if ip := at.Addr().Unmap().WithZone(""); !address.Public(ip) {
		return fmt.Errorf("%w: %s", errPrivate, ip)
	}
	return nil
}
