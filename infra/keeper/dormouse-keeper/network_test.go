package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// networkRole is the role of a process that runs a command in a network namespace of its own; its
// arguments are FOLDER COMMAND…. There the machine has the addresses 203.0.113.1 and 192.168.1.1.
// All other addresses of these networks stand for other machines.
const networkRole = "network"

// beyond is the address of the resolver in that network. It answers what where returns.
const beyond = "203.0.113.53"

func where(name string) []string {
	return map[string][]string{
		"api.test.": {"203.0.113.7"}, "two.test.": {"127.0.0.1", "203.0.113.9"}, "here.test.": {"127.0.0.1"}, "own.test.": {"203.0.113.1"},
		"a.wild.test.": {"203.0.113.11"}, "xn--bcher-kva.test.": {"203.0.113.12"}, "evil.test.": {"203.0.113.66"}, "turns.test.": {"192.168.1.11"}, "cloud.test.": {"169.254.169.254"},
	}[strings.ToLower(name)]
}

// networked returns the same command as [as.command], which runs in such a network.
func (a as) networked(t testing.TB, role string, args ...string) *exec.Cmd {
	t.Helper()
	c := a.command(role, args...)
	c.Args = append([]string{networkRole, t.TempDir()}, c.Args...)
	c.SysProcAttr = own(unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_NET_BIND_SERVICE)
	c.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET | unix.CLONE_NEWNS
	return c
}

// own gives a process capabilities: root has them, and others get a user namespace of their own.
func own(capabilities ...uintptr) *syscall.SysProcAttr {
	me := os.Getuid()
	if me == 0 {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: me, HostID: me, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: capabilities,
	}
}

// network sets up the network and runs the command. At port 8080 of each address it sends back
// what it gets, and in the end it prints which addresses were reached. At ports 80 and 443 a web
// server answers with the host of the request, or with as many bytes as the path says.
func network(folder string, command []string) {
	resolver := filepath.Join(folder, "resolv.conf")
	for link, ip := range map[string]string{"lo": "127.0.0.1", "lo:1": "203.0.113.1", "lo:2": "192.168.1.1"} { // on loopback, all of their networks are local
		address(link, ip)
	}
	err := errors.Join(
		os.WriteFile(resolver, []byte("nameserver "+beyond+"\n"), 0o644),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount(resolver, "/etc/resolv.conf", "", unix.MS_BIND, ""),
	)
	need(err)
	questions, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(beyond+":53")))
	need(err)
	go resolve(questions)
	plain, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: 80})
	need(err)
	secure, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: 443})
	need(err)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := strconv.Atoi(r.URL.Path[1:]); err == nil {
			_, _ = w.Write(make([]byte, n))
			return
		}
		_, _ = fmt.Fprint(w, "this is ", r.Host) // the box says what came
	}))
	web.Config.ErrorLog = log.New(io.Discard, "", 0) // a reset is expected
	go func() { _ = web.Config.Serve(plain) }()      // until the program ends
	web.Listener = secure
	web.StartTLS()
	doors, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: 8080})
	need(err)
	var mu sync.Mutex
	reached := map[string]bool{}
	go func() {
		for {
			c, err := doors.AcceptTCP()
			if err != nil {
				return
			}
			mu.Lock()
			reached[c.LocalAddr().String()] = true
			mu.Unlock()
			go func() {
				_, err := io.Copy(struct{ io.Writer }{c}, c)
				_ = errors.Join(err, c.Close()) // the box says what came back
			}()
		}
	}()
	need(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if slices.Contains(command, "--control") {
		cmd.ExtraFiles = []*os.File{os.NewFile(3, "control")}
	}
	err = cmd.Run()
	mu.Lock()
	defer mu.Unlock()
	_, failed := fmt.Fprintf(os.Stdout, "reached %v\n", slices.Sorted(maps.Keys(reached)))
	need(errors.Join(err, failed))
}

func address(link, ip string) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	need(err)
	r, err := unix.NewIfreq(link)
	need(err)
	at := netip.MustParseAddr(ip).As4()
	need(r.SetInet4Addr(at[:]))
	need(unix.IoctlIfreq(fd, unix.SIOCSIFADDR, r))
	r.SetUint16(unix.IFF_UP)
	need(errors.Join(unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r), unix.Close(fd)))
}

func resolve(c *net.UDPConn) {
	for b := make([]byte, 1500); ; {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(b[:n]); err != nil {
			continue
		}
		q := m.Questions[0]
		m.Response, m.Additionals = true, nil
		all := where(q.Name.String())
		if all == nil {
			m.RCode = dnsmessage.RCodeNameError
		}
		for _, ip := range all {
			if q.Type == dnsmessage.TypeA {
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: netip.MustParseAddr(ip).As4()}})
			}
		}
		text, err := m.Pack()
		if err != nil {
			continue
		}
		_, _ = c.WriteToUDPAddrPort(text, from) // a client that gets no answer asks again
	}
}

// A server that may use the network reaches other machines, by name and by address, and nothing
// on its own machine. With a list of hosts it reaches only these hosts.
func TestAServerReachesWhatIsBeyondTheMachine(t *testing.T) {
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}, User: "node"}, withServer(t))
	const back = "1000000 bytes came back"
	everywhere(t, func(t *testing.T, a as) {
		store := a.folder(t)
		keep(t, a, "", "pull", "--store", store, ref).ended(t, 0)
		for network, want := range map[string]map[string]string{
			"on": {
				"dial:api.test:8080": back, "dial:API.Test:8080": back, "dial:two.test:8080": back, "dial:203.0.113.7:8080": back, "dial:api.test:8081": "refused",
				"dial:here.test:8080": "refused", "dial:own.test:8080": "refused", "dial:203.0.113.1:8080": "refused", "dial:127.0.0.1:8080": "refused",
				"dial:nowhere.test:8080": "no such host", "send:203.0.113.53:53": "refused", "reached": "[203.0.113.7:8080 203.0.113.9:8080]",
			},
			"hosts": {
				"dial:api.test:8080": back, "dial:API.Test.:8080": back, "dial:a.wild.test:8080": back, "dial:xn--bcher-kva.test:8080": back, "dial:192.168.1.10:8080": back, "dial:[::ffff:192.168.1.10]:8080": back,
				"dial:api.test:8081": "refused", "dial:wild.test:8080": "no such host", "dial:evil.test:8080": "no such host", "dial:203.0.113.7:8080": "refused", "dial:[::ffff:203.0.113.7]:8080": "refused",
				"dial:3405803783:8080": "no such host", "dial:0313.0.0161.7:8080": "no such host", "dial:0xcb.0.0x71.7:8080": "no such host", "dial:192.168.1.11:8080": "refused",
				"dial:turns.test:8080": "refused", "dial:cloud.test:8080": "refused", "dial:own.test:8080": "refused", "dial:169.254.169.254:80": "refused", "dial:168.63.129.16:80": "refused", "dial:203.0.113.1:8080": "refused",
				"dial:[2001:db8::7]:8080": "unreachable", "dial:10.55.0.1:53": "refused", "dial:203.0.113.53:53": "refused", "send:203.0.113.53:53": "refused", "send:203.0.113.7:8080": "refused",
				"reached": "[192.168.1.10:8080 203.0.113.11:8080 203.0.113.12:8080 203.0.113.7:8080]",

				"dormouse-keeper: network: evil.test was": "refused; add it to x-dormouse.box.network", "dormouse-keeper: network: api.test:8081 was": "refused; add it to x-dormouse.box.network",
				"dormouse-keeper: network: 192.168.1.11:8080 was": "refused", "dormouse-keeper: network: own.test:8080 was": "refused: 203.0.113.1, this machine",
			},
			"off": {"dial:api.test:8080": "error ", "dial:203.0.113.7:8080": "error ", "reached": "[]"},
		} {
			var deeds []string
			for deed := range want {
				if strings.Contains(deed, ":") && !strings.HasPrefix(deed, "dormouse-keeper") {
					deeds = append(deeds, deed)
				}
			}
			args := []string{"run", "--store", store, "--network", network}
			if network == "hosts" {
				args = append(args[:3], "--host", "api.test:8080", "--host", "*.wild.test:8080", "--host", "bücher.test:8080", "--host", "192.168.1.10:8080", "--host", "turns.test:8080", "--host", "cloud.test:8080", "--host", "own.test:8080")
			}
			out, err := a.networked(t, keeperRole, append(append(args, ref), deeds...)...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %s", network, err, out)
			}
			r := ran{out: string(out)}
			for deed, part := range want {
				has(t, deed, part, r.says(deed))
			}
		}
	})
}

// fetchServer is an MCP server whose tool fetches a URL.
var fetchServer = nodeServer("const look = async () => (await fetch(process.env.URL)).text()")

// A server that "dormouse run" hosts reaches a host of its list. If it calls another host, then
// the error of the call, the logs, ps and the terminal say so in the same words.
func TestARefusedHostIsSaidWhereTheUserLooks(t *testing.T) {
	a := as{1000, ""}
	programs, data := built(t), a.folder(t)
	script, file := filepath.Join(data, "fetch.js"), filepath.Join(data, "servers.json")
	server := func(url string) string {
		return fmt.Sprintf(`{"command": "node", "args": [%q], "env": {"URL": %q}, "x-dormouse": {"record": "off", "box": {"network": ["api.test"]}}}`, script, url)
	}
	err := errors.Join(os.WriteFile(script, []byte(fetchServer), 0o644), os.WriteFile(file, []byte(`{"mcpServers": {"listed": `+server("http://api.test/")+`, "other": `+server("http://evil.test/")+`}}`), 0o644))
	must(t, err)
	t.Setenv("HOME", data)
	t.Setenv("PATH", programs+":/usr/local/bin:/usr/bin:/bin")
	out, err := a.networked(t, "/bin/sh", "-c", `cd $HOME
dormouse run --servers servers.json --listen 127.0.0.1:0 --sockets 127.0.0.1:0 --data state >told 2>&1 & run=$!
until dormouse ps --data state >/dev/null 2>&1; do :; done
for what in "call listed look" "call other look" ps "logs other"; do
  echo "<$what"; dormouse $what --data state; echo ">"
done
kill -INT $run; wait $run
echo "<run"; cat told; echo ">"`).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	const said = "network: evil.test was refused; add it to x-dormouse.box.network"
	for what, want := range map[string]string{"call listed look": "this is api.test", "call other look": said, "ps": said, "logs other": said + "\n", "run": `network-refused client=dormouse what="` + said} {
		_, rest, _ := strings.Cut(string(out), "<"+what+"\n")
		if rest, _, _ = strings.Cut(rest, "\n>\n"); !strings.Contains(rest+"\n", want) {
			t.Errorf("%s says: %s", what, rest)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// clients returns the command lines of programs in three languages. Each does the deeds that its
// arguments name, with the usual HTTP client of its language.
func clients(t testing.TB) map[string][]string {
	t.Helper()
	dir := filepath.Dir(serverProgram)
	err := os.Chmod(dir, 0o755) // another user runs them
	for _, script := range []string{"client.js", "client.py"} {
		text, failed := os.ReadFile(filepath.Join("testdata", script))
		err = errors.Join(err, failed, os.WriteFile(filepath.Join(dir, script), text, 0o644))
	}
	t.Setenv("PATH", "/usr/local/bin:/usr/bin:/bin") // these folders are in the box
	node, none := exec.LookPath("node")
	python, no := exec.LookPath("python3")
	must(t, errors.Join(err, none, no))
	return map[string][]string{"go": {serverProgram}, "node": {node, filepath.Join(dir, "client.js")}, "python": {python, filepath.Join(dir, "client.py")}}
}

// listed returns a command that has a client do deeds in a box with a list of hosts.
func (a as) listed(t testing.TB, store string, hosts, client []string, deeds ...string) *exec.Cmd {
	t.Helper()
	args := []string{"run", "--system", "--store", store}
	for _, folder := range []string{"/usr", "/bin", "/lib", "/lib64", filepath.Dir(serverProgram)} {
		args = append(args, "--folder", folder+":"+folder+":fixed")
	}
	for _, host := range hosts {
		args = append(args, "--host", host)
	}
	return a.networked(t, keeperRole, slices.Concat(args, []string{"--"}, client, deeds)...)
}

func TestUsualClientsAreToldTheTruth(t *testing.T) {
	const no, refused = "no name", "refused"
	as := as{1000, ""}
	said := map[string]map[string]string{
		"go":     {no: "no such host", refused: "connection refused", "unreachable": "network is unreachable"},
		"node":   {no: "error getaddrinfo ENOTFOUND evil.test", refused: "ECONNREFUSED", "unreachable": "ENETUNREACH"},
		"python": {no: "error gaierror [Errno -2] Name or service not known", refused: "error ConnectionRefusedError [Errno 111] Connection refused", "unreachable": "error OSError [Errno 101] Network is unreachable"},
	}
	for name, client := range clients(t) {
		t.Run(name, func(t *testing.T) {
			deeds := map[string]string{
				"get:http://api.test/": "this is api.test", "get:https://api.test/": "this is api.test", "get:http://evil.test/": no, "get:http://api.test:8081/": refused, "get:http://turns.test/": refused,
				"dial:evil.test:8080": no, "dial:api.test:8080": refused, "dial:203.0.113.7:80": refused, "dial:169.254.169.254:80": refused, "dial:turns.test:80": refused, "dial:[2001:db8::7]:80": "unreachable", "send:203.0.113.7:80": refused,
			}
			out, err := as.listed(t, as.folder(t), []string{"api.test", "turns.test"}, client, slices.Sorted(maps.Keys(deeds))...).CombinedOutput()
			r := ran{out: string(out)}
			for deed, want := range deeds {
				has(t, deed, cmp.Or(said[name][want], want), r.says(deed))
			}
			if err != nil || t.Failed() {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// BenchmarkListedHost measures how long programs take to fetch from a host of their list, in a box
// and outside of one.
func BenchmarkListedHost(b *testing.B) {
	a := as{1000, ""}
	store := a.folder(b)
	for name, client := range clients(b) {
		b.Run(name, func(b *testing.B) {
			deeds := map[string]string{"1kB-ms": "fetch:1000@api.test:80", "10MB-ms": "fetch:10485760@api.test:80"}
			figures := map[string][]float64{}
			for b.Loop() {
				for unit, deed := range deeds {
					for way, cmd := range map[string]*exec.Cmd{
						"plain": a.networked(b, client[0], append(client[1:], deed)...), "sealed": a.listed(b, store, []string{"api.test"}, client, deed),
					} {
						out, err := cmd.CombinedOutput()
						ms, wrong := strconv.ParseFloat(ran{out: string(out)}.says(deed), 64)
						if err := errors.Join(err, wrong); err != nil {
							b.Fatalf("%s: %v: %s", way, err, out)
						}
						figures[way+"-"+unit] = append(figures[way+"-"+unit], ms)
					}
				}
			}
			for unit, all := range figures {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
