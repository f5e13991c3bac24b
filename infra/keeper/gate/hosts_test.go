package gate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func read(t *testing.T, list ...string) Hosts {
	t.Helper()
	all, err := ReadHosts(list)
	must(t, err)
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal reports an error if got is not want.
func equal[T comparable](t testing.TB, what string, want, got T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, not %v", what, got, want)
	}
}

func TestWhatIsNoHostIsRefused(t *testing.T) {
	for _, text := range []string{
		"", ".", "*", "*.", "a..b", "a b", "https://a.test", "a.test/x", "a.test:", "a.test:0", "a.test:65536", "a.test:http", "*.*.test", "a.*.test",
		"::1", "[::1]:80", "::ffff:10.0.0.1", "1.2.3", "1.2.3.4.5", "256.1.1.1", "010.0.0.1", "2130706433", "0x7f.1", "a.0x7f", "\xff.test", strings.Repeat("a", 64) + ".test", strings.Repeat("a.", 127) + "test",
	} {
		if all, err := ReadHosts([]string{text}); err == nil {
			t.Errorf("%q: %+v", text, all)
		}
	}
}

// A name is allowed by its own entry or by that of a name above, in any case of letters, and by
// nothing that only looks alike.
func TestHostsAreComparedByName(t *testing.T) {
	all := read(t, "api.test", "*.slack.test:443", "DB.Test.:5432", "bücher.test", "192.168.1.10:5432", "1.1.1.1")
	for of, want := range map[string]string{ // the ports of 80, 443, 5432 that are allowed
		"api.test": "80 443", "API.Test.": "80 443", "a.api.test": "", "xapi.test": "", "api.test.evil.test": "", "test": "",
		"a.slack.test": "443", "a.b.slack.test": "443", "slack.test": "", "aslack.test": "", ".slack.test": "", "*.slack.test": "",
		"db.test": "5432", "xn--bcher-kva.test": "80 443", "BÜCHER.test": "80 443", "xn--bcher-kv.test": "", "1.1.1.1": "", "": "", "16843009": "", "a\n.test": "",
	} {
		var got []string
		for _, port := range []uint16{80, 443, 5432} {
			if name, err := canonical(of); err == nil && all.allow(name, port) {
				got = append(got, entry("", port)+map[uint16]string{80: "80", 443: "443"}[port])
			}
		}
		equal(t, of, want, strings.ReplaceAll(strings.Join(got, " "), ":", ""))
	}
}

// A connection is refused unless the list allows the address to which it leads. The text says
// why, and which entry would allow it.
func TestPlacesAreRefusedUnlessTheListHasThem(t *testing.T) {
	const mine = "203.0.113.1"
	machine := []netip.Addr{netip.MustParseAddr(mine)}
	g := Open(read(t, "api.test", "192.168.1.10:5432", "169.254.170.2:80", mine, "127.0.0.1"), nil)
	add := "; add it to x-dormouse.box.network"
	for _, c := range []struct{ name, to, want string }{
		{"api.test", "203.0.113.7:443", ""},
		{"api.test", "[2606:4700::1111]:443", ""},
		{"api.test", "192.168.1.10:5432", ""},
		{"api.test", "192.168.1.10:443", "192.168.1.10 was refused, to which api.test leads" + add},
		{"api.test", "100.64.0.1:80", "100.64.0.1 was refused, to which api.test leads" + add},
		{"api.test", "[fd00::1]:443", "api.test was refused: fd00::1, a private address"},
		{"api.test", "[64:ff9b::a00:1]:443", "api.test was refused: 64:ff9b::a00:1, a private address"},
		{"api.test", "169.254.169.254:80", "api.test was refused: 169.254.169.254, an address of the machine or of the cloud that it is in"},
		{"api.test", "[64:ff9b::a9fe:a9fe]:80", "api.test was refused: 64:ff9b::a9fe:a9fe, an address of the machine or of the cloud that it is in"},
		{"api.test", "[::1]:80", "api.test was refused: ::1, this machine or no place on a network"},
		{"api.test", mine + ":443", "api.test was refused: " + mine + ", this machine or no place on a network"},
		{"", "192.168.1.10:5432", ""},
		{"", "169.254.170.2:80", ""},
		{"", "192.168.1.10:22", "192.168.1.10:22 was refused" + add},
		{"", "8.8.8.8:443", "8.8.8.8 was refused" + add},
		{"", "8.8.8.8:53", "8.8.8.8:53 was refused" + add},
		{"", "169.254.169.254:80", "169.254.169.254 was refused: an address of the machine or of the cloud that it is in"},
		{"", "168.63.129.16:80", "168.63.129.16 was refused: an address of the machine or of the cloud that it is in"},
		{"", "10.55.0.1:53", "10.55.0.1:53 was refused: this machine or no place on a network"},
		{"", "127.0.0.1:80", "127.0.0.1 was refused: this machine or no place on a network"},
		{"", mine + ":80", mine + " was refused: this machine or no place on a network"},
		{"", "198.18.0.9:80", "198.18.0.9 was refused: this machine or no place on a network"},
	} {
		got := ""
		if err := g.forbids(c.name, netip.MustParseAddrPort(c.to), machine); err != nil {
			got = strings.TrimPrefix(err.Error(), "network: ")
		}
		equal(t, c.name+" "+c.to, c.want, got)
	}
}

// Only names of the list get an address. If such a name leads to a private address, the connection
// is refused. With the same list a name has the same made-up address in every box.
func TestOnlyNamesOfTheListHaveAddresses(t *testing.T) {
	var told []string
	g := Open(read(t, "turns.test", "other.test:8080", "*.wild.test"), func(text string) { told = append(told, text) })
	g.lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("127.0.0.1")}, nil
	}
	answers := map[string]dnsmessage.Message{}
	for _, name := range []string{"turns.test.", "a.WILD.test.", "evil.test.", "wild.test.", "2130706433."} {
		for _, of := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeHTTPS} {
			m := asked(t, g, name, of)
			known := strings.HasPrefix(name, "turns") || strings.HasPrefix(name, "a.")
			equal(t, name, known, m.RCode == dnsmessage.RCodeSuccess)
			equal(t, name, known && of == dnsmessage.TypeA, len(m.Answers) > 0)
			answers[name+of.String()] = m
		}
	}
	if want := []string{"network: evil.test was refused; add it to x-dormouse.box.network", "network: wild.test was refused; add it to x-dormouse.box.network"}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
	told = nil
	a := answers["turns.test.TypeA"].Answers[0].Body.(*dnsmessage.AResource).A //nolint:forcetypeassert // see above
	for _, port := range []uint16{443, 8080} {
		_, c, err := g.dial(netip.AddrFrom4(a), port)
		if err == nil {
			t.Fatalf("dialled %v", c.RemoteAddr())
		}
		told = append(told, err.Error())
	}
	if want := []string{"network: turns.test was refused: 127.0.0.1, this machine or no place on a network", "network: turns.test:8080 was refused; add it to x-dormouse.box.network"}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
	equal(t, "the address in another box", netip.AddrFrom4(a), Open(read(t, "other.test", "turns.test"), nil).names["turns.test"])
}

func TestRefusalsAreToldOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		g := Open(Hosts{}, func(text string) { told = append(told, text) })
		for range 30 {
			for _, place := range []string{"a.test", "b.test"} {
				g.refuse(&refusal{place: place})
			}
			time.Sleep(100 * time.Millisecond)
		}
		equal(t, "told", 6, len(told))
		time.Sleep(time.Second)
		told = nil
		for n := range 3 * places {
			g.refuse(&refusal{place: entry("c.test", uint16(n))})
		}
		equal(t, "told", places, len(told))
		equal(t, "kept", places, len(g.told))
		g.refuse(errors.New("the box is gone"))
	})
}

// clientHello returns what a TLS client says first.
func clientHello(t *testing.T, c *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() {
		err := tls.Client(theirs, c).HandshakeContext(t.Context())
		_ = errors.Join(err, theirs.Close()) // no server answers
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(ours, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(ours, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// split puts a ClientHello into records of some bytes each.
func split(hello []byte, size int) (all []byte) {
	for part := range slices.Chunk(hello[5:], size) {
		all = append(append(all, 22, 3, 1, byte(len(part)>>8), byte(len(part))), part...)
	}
	return all
}

func TestTheNameInTLSMustBeOfTheList(t *testing.T) {
	all := read(t, "front.test", "*.other.test:8443")
	named := func(name string) []byte {
		return clientHello(t, &tls.Config{ServerName: name, InsecureSkipVerify: true}) //nolint:gosec // no server answers
	}
	front, evil := named("front.test"), named("evil.test")
	add := "; add it to x-dormouse.box.network"
	for name, c := range map[string]struct {
		says []byte
		port uint16
		want string
	}{
		"its name": {front, 443, ""}, "in upper case": {named("Front.TEST"), 443, ""}, "in many records": {split(front, 7), 443, ""}, "with more behind it": {slices.Concat(front, front), 443, ""},
		"no name": {named("203.0.113.7"), 443, ""}, "below a wildcard": {named("a.other.test"), 8443, ""}, "on another port": {named("a.other.test"), 443, "a.other.test was refused" + add},
		"another name": {evil, 443, "evil.test was refused" + add}, "another, in many records": {split(evil, 1), 443, "evil.test was refused" + add}, "another, on its port": {evil, 8443, "evil.test:8443 was refused" + add},
		"ECH":        {hiding(front), 443, "front.test was refused: its TLS handshake hides the host that it names (ECH)"},
		"half of it": {front[:len(front)-9], 443, "front.test was refused: its TLS handshake cannot be read"}, "no hello": {[]byte("\x16\x03\x01\x00\x04\x02\x00\x00\x00"), 443, "front.test was refused: its TLS handshake cannot be read"},
		"too long":              {slices.Concat([]byte("\x16\x03\x01\x40\x00\x01\xff\xff\xff"), make([]byte, 1<<14-4)), 443, "front.test was refused: its TLS handshake cannot be read"},
		"long, in many records": {split(slices.Concat([]byte("\x16\x03\x01\x00\x00\x01\x00\xff\x00"), make([]byte, 0xff00)), 1), 443, "front.test was refused: its TLS handshake cannot be read"},
		"no TLS":                {[]byte("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"), 80, ""}, "one byte": {[]byte{22}, 443, ""}, "nothing": {nil, 443, ""}, "another protocol": {[]byte("\x16\x04abc"), 443, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for way, from := range map[string]io.Reader{"at once": bytes.NewReader(c.says), "byte by byte": iotest.OneByteReader(bytes.NewReader(c.says))} {
				in := from
				begin, err := all.greet(in, "front.test", c.port)
				got := ""
				if err != nil {
					got = strings.TrimPrefix(err.Error(), "network: ")
				}
				equal(t, way, c.want, got)
				if rest, _ := io.ReadAll(in); c.want == "" && !bytes.Equal(slices.Concat(begin, rest), c.says) {
					t.Errorf("%s: %d and %d bytes of %d go on", way, len(begin), len(rest), len(c.says))
				}
			}
		})
	}
}

// hiding adds an empty extension for an encrypted name to a ClientHello.
func hiding(hello []byte) []byte {
	all := slices.Concat(hello, []byte{hidden >> 8, hidden & 0xff, 0, 1, 1})
	more := func(at, bytes int) {
		n := 0
		for _, b := range all[at : at+bytes] {
			n = n<<8 | int(b)
		}
		for i := range bytes {
			all[at+i] = byte((n + 5) >> (8 * (bytes - 1 - i)))
		}
	}
	session := int(all[43])
	suites := 44 + session
	methods := suites + 2 + int(all[suites])<<8 + int(all[suites+1])
	more(3, 2)
	more(6, 3)
	more(methods+1+int(all[methods]), 2)
	return all
}

func TestAddressesThatNoBoxReaches(t *testing.T) {
	machine := []netip.Addr{netip.MustParseAddr("192.168.7.7"), netip.MustParseAddr("2001:db8::7")}
	for text, want := range map[string]bool{
		"1.1.1.1": false, "192.168.7.8": false, "10.0.0.1": false, "2606:4700::1111": false, "fd00::1": false,
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "0.0.0.0": true, "0.1.2.3": true, "::": true, "192.168.7.7": true, "2001:db8::7": true,
		"169.254.169.254": true, "fe80::1": true, "fd00:ec2::254": true, "224.0.0.1": true, "ff02::1": true, "255.255.255.255": true, "240.0.0.1": true, "198.18.0.1": true,
		"64:ff9b::a9fe:a9fe": true, "64:ff9b::101:101": false, "2002:7f00:1::": true, "64:ff9b::c0a8:707": true, "168.63.129.16": true, "100.100.100.200": true,
		"192.0.0.192": true, "fd00:ec2::23": true, "fd20:ce::254": true, "fd00:c1::a9fe:a9fe": true, "fd00:42::42": true, "fd00:a9fe:a9fe::1": true, "fd00:100::100:200": true,
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
