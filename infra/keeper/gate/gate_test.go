package gate

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func TestAddressesThatNoBoxReaches(t *testing.T) {
	machine := []netip.Addr{netip.MustParseAddr("192.168.7.7"), netip.MustParseAddr("2001:db8::7")}
	for text, want := range map[string]bool{
		"1.1.1.1": false, "192.168.7.8": false, "10.0.0.1": false, "2606:4700::1111": false, "fd00::1": false,
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "0.0.0.0": true, "0.1.2.3": true, "::": true, "192.168.7.7": true, "2001:db8::7": true,
		"169.254.169.254": true, "fe80::1": true, "fd00:ec2::254": true, "224.0.0.1": true, "ff02::1": true, "255.255.255.255": true, "240.0.0.1": true, "198.18.0.1": true,
		"64:ff9b::a9fe:a9fe": true, "64:ff9b::101:101": false, "2002:7f00:1::": true, "64:ff9b::c0a8:707": true, "168.63.129.16": true, "100.100.100.200": true,
	} {
		equal(t, text, want, closed(netip.MustParseAddr(text), machine))
	}
}

// Each name that exists gets a made-up address. A connection to a name that leads to this machine
// is refused.
func TestNamesHaveAddressesOfTheGate(t *testing.T) {
	g := Open(nil, nil)
	g.lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
		if name == "here.test" {
			return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1"), netip.MustParseAddr("::1")}, nil
		}
		return nil, errors.New("no such host")
	}
	first, again := asked(t, g, "Here.test.", dnsmessage.TypeA), asked(t, g, "here.TEST.", dnsmessage.TypeA)
	if len(first.Answers) != 1 || len(again.Answers) != 1 || first.ID != 7 || !first.Response {
		t.Fatalf("%+v %+v", first, again)
	}
	a, ok := first.Answers[0].Body.(*dnsmessage.AResource)
	if b, _ := again.Answers[0].Body.(*dnsmessage.AResource); !ok || *a != *b || !netip.MustParsePrefix("198.18.0.0/15").Contains(netip.AddrFrom4(a.A)) {
		t.Errorf("%v %v", first.Answers, again.Answers)
	}
	if m := asked(t, g, "here.test.", dnsmessage.TypeAAAA); len(m.Answers) != 0 || m.RCode != dnsmessage.RCodeSuccess {
		t.Errorf("%+v", m)
	}
	equal(t, "nowhere.test", dnsmessage.RCodeNameError, asked(t, g, "nowhere.test.", dnsmessage.TypeA).RCode)
	if _, c, err := g.dial(netip.AddrFrom4(a.A), 80); err == nil {
		t.Errorf("dialled %v", c.RemoteAddr())
	}
	for _, text := range []string{"", "x", "\x00\x00\x00\x00\x00\x01"} {
		if m, err := g.reply([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, m)
		}
	}
}

func asked(t *testing.T, g *Gate, name string, of dnsmessage.Type) dnsmessage.Message {
	t.Helper()
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: of, Class: dnsmessage.ClassINET}}}
	text, err := q.Pack()
	must(t, err)
	answer, err := g.reply(text)
	must(t, err)
	var m dnsmessage.Message
	must(t, m.Unpack(answer))
	return m
}
