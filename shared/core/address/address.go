// Package address says which addresses are on the public internet, and which hosts are this machine. Programs
// ask it before they connect to a host of a stranger's choice.
package address

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// special are the blocks without public hosts (RFC 6890) for which [Public] has no other test, and
// 168.63.129.16, at which a machine in Azure reaches Azure's own services. Clouds use some addresses of
// 100.64.0.0/10 for their metadata.
var special = prefixes("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"240.0.0.0/4", "168.63.129.16/32", "2001::/23", "2001:db8::/32", "3fff::/20")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Public reports whether an address is on the public internet. An IPv6 address that embeds an IPv4
// address (NAT64, 6to4) counts as the IPv4 address.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	if a.IsPrivate() || !a.IsGlobalUnicast() || a.Zone() != "" {
		return false
	}
	if b := a.AsSlice(); a.Is6() {
		switch {
		case netip.MustParsePrefix("64:ff9b::/96").Contains(a): // NAT64, but not 64:ff9b:1::/48, which is of a local network
			return Public(netip.AddrFrom4([4]byte(b[12:16])))
		case b[0] == 0x20 && b[1] == 0x02: // 6to4
			return Public(netip.AddrFrom4([4]byte(b[2:6])))
		case b[0]&0xe0 != 0x20:
			return false
		}
	}
	return !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Loopback reports whether a host means this machine for every client that resolves it.
func Loopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}
