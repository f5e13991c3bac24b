//go:build e2e && acme

package dormouse_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// authority is pebble, Let's Encrypt's own authority for tests, and a name server that
// finds every name on this machine.
type authority struct {
	t              *testing.T
	pebble         *exec.Cmd
	directory      string
	management     string
	trust          string // a file with the certificate of the authority's own endpoint
	plain, encoded string // where it asks a domain's questions, as 127.0.0.1:PORT
	pool           *x509.CertPool
}

// newAuthority starts both programs, which make test-acme installs.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	folder := os.Getenv("DORMOUSE_TEST_PEBBLE")
	if folder == "" {
		t.Fatal("DORMOUSE_TEST_PEBBLE names no folder: run make test-acme")
	}
	a := &authority{t: t, management: commontest.FreeAddress(t), plain: commontest.FreeAddress(t), encoded: commontest.FreeAddress(t)}
	cert, key, pool := ownCertificate(t)
	a.trust, a.pool = cert, pool
	listen, names := commontest.FreeAddress(t), commontest.FreeAddress(t)
	a.directory = "https://" + listen + "/dir"
	port := func(address string) int { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)).Port }
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": listen, "managementListenAddress": a.management, "certificate": cert, "privateKey": key,
		"httpPort": port(a.plain), "tlsPort": port(a.encoded), "keyAlgorithm": "ecdsa",
		"profiles": map[string]any{"default": map[string]any{"description": "usual", "validityPeriod": 7776000}},
	}})
	commontest.OK(t, err)
	file := filepath.Join(t.TempDir(), "pebble.json")
	write(t, file, string(config))
	a.start(filepath.Join(folder, "pebble-challtestsrv"), "-dnsserver", names, "-defaultIPv6", "", "-http01", "", "-https01", "", "-doh", "", "-tlsalpn01", "", "-management", commontest.FreeAddress(t))
	a.pebble = a.start(filepath.Join(folder, "pebble"), "-config", file, "-dnsserver", names)
	return a
}

// start starts a program and does not wait until it listens. The caller repeats its first
// request until the program answers.
func (a *authority) start(program string, args ...string) *exec.Cmd {
	a.t.Helper()
	cmd := exec.CommandContext(a.t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0")
	log := newJournal()
	cmd.Stdout, cmd.Stderr = log, log
	commontest.OK(a.t, cmd.Start())
	a.t.Cleanup(func() {
		_ = cmd.Wait() // the end of the test's context kills it
		if a.t.Failed() {
			a.t.Logf("%s said\n%s", program, log.tail(60))
		}
	})
	return cmd
}

// root returns a pool with the authority's root, once it answers.
func (a *authority) root(m *machine) *x509.CertPool {
	a.t.Helper()
	client, pool := trusting(a.pool, ""), x509.NewCertPool()
	m.eventually(patience, "the authority answers", func() bool {
		res, err := client.Get("https://" + a.management + "/roots/0") //nolint:noctx // web asks again
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return true
	})
	text := web(a.t, client, http.MethodGet, "https://"+a.management+"/roots/0", "", nil).text
	if !pool.AppendCertsFromPEM([]byte(text)) {
		a.t.Fatalf("the authority has no root: %s", text)
	}
	return pool
}

// ownCertificate writes the certificate for 127.0.0.1 of package httptest, and its key. Clients
// with the pool trust it.
func ownCertificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	s.Close()
	der, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
	commontest.OK(t, err)
	folder := t.TempDir()
	cert, key, pool = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem"), x509.NewCertPool()
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	pool.AddCert(s.Certificate())
	return cert, key, pool
}

// trusting returns a client that trusts these authorities. It connects to address instead
// of any host, or to the host itself if address is "".
func trusting(pool *x509.CertPool, address string) *http.Client {
	var d net.Dialer
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			DialContext: func(ctx context.Context, network, own string) (net.Conn, error) {
				if address != "" {
					own = address
				}
				return d.DialContext(ctx, network, own)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// --tls gets a certificate from an authority before any client asks, keeps it in the data
// folder, and needs no authority at the next start.
func TestE2EACMEGetsACertificateAndKeepsIt(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	m := newMachine(t, servers{"secure": nil})
	m.env = []string{"SSL_CERT_FILE=" + a.trust}
	root := a.root(m)
	flags := []string{"--tls", "dormouse.test", "--authority", a.directory, "--listen", a.encoded, "--sockets", "127.0.0.1:0", "--access", "open"}
	m.start(flags...)
	endpoint := m.urls["secure"]
	if !strings.HasPrefix(endpoint, "https://dormouse.test:") {
		t.Errorf("the address is %s", endpoint)
	}
	kept := filepath.Join(m.data, "certificates", "dormouse.test")
	m.eventually(patience, "the certificate is kept", func() bool { _, err := os.Stat(kept); return err == nil })
	if info, err := os.Stat(kept); err != nil || info.Mode().Perm() != fs.FileMode(0o600) {
		t.Errorf("the file with the key: %v, %v", info.Mode(), err)
	}
	browser := trusting(root, a.encoded)
	c := m.client("secure")
	c.http = browser
	commontest.OK(t, c.open(params))
	// Another name gets no certificate: each would be a request to the authority.
	if _, err := browser.Get("https://other.test/healthz"); err == nil { //nolint:noctx,bodyclose // it must fail
		t.Error("another name got a certificate")
	}
	_ = a.pebble.Process.Kill()
	m.kill(m.only("dormouse"))
	m.ended(patience)
	m.start(flags...)
	next := m.again(c, "secure")
	next.http = browser
	_, err := next.call("echo", `{"text":"hello"}`)
	commontest.CheckIn(t, "after a restart without the authority", err)
}
