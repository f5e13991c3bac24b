package address_test

import (
	"net/netip"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/address"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestOnlyAddressesOfTheInternetArePublic(t *testing.T) {
	for public, all := range map[bool][]string{
		true: {"8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1", "192.0.1.1", "198.20.0.1"},
		false: {
			"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "64:ff9b::a83f:8110",
			"192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
			"fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "::8.8.8.8", "100::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1",
			"64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1", "2606:4700::1111%eth0",
		},
	} {
		for _, text := range all {
			commontest.EqualIn(t, text, public, address.Public(netip.MustParseAddr(text)))
		}
	}
	commontest.EqualIn(t, "no address is public", false, address.Public(netip.Addr{}))
}
