//go:build e2e

package dormouse_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// ownCertificate writes a certificate for 127.0.0.1, signed by itself, and its key. Clients
// with the pool trust it.
func ownCertificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	commontest.OK(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	commontest.OK(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	commontest.OK(t, err)
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
	folder := t.TempDir()
	cert, key, pool = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem"), x509.NewCertPool()
	write(t, cert, text)
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	pool.AppendCertsFromPEM([]byte(text))
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

// With a certificate in files, both endpoints speak TLS, and every printed address has
// the scheme https or wss.
func TestE2ETLSWithACertificateOfFiles(t *testing.T) {
	t.Parallel()
	cert, key, pool := ownCertificate(t)
	m := newMachine(t, servers{"secure": nil})
	m.start("--tls-cert", cert, "--tls-key", key)
	endpoint, socket := m.urls["secure"], m.ws["secure"]
	if !strings.HasPrefix(endpoint, "https://127.0.0.1:") || !strings.HasPrefix(socket, "wss://127.0.0.1:") {
		t.Errorf("the addresses are %s and %s", endpoint, socket)
	}
	browser := trusting(pool, "")
	c := m.client("secure")
	c.http = browser
	commontest.OK(t, c.open(params))
	if all, err := c.call("echo", `{"text":"hello"}`); err != nil || !strings.Contains(string(all[len(all)-1].Result), "hello") {
		t.Errorf("the tool said %v, %v", all, err)
	}
	conn, _, err := websocket.Dial(t.Context(), socket, &websocket.DialOptions{Subprotocols: []string{"mcp"}, HTTPClient: browser}) //nolint:bodyclose // the library closes it
	commontest.OK(t, err)
	commontest.OK(t, conn.Write(t.Context(), websocket.MessageText, []byte(initialize)))
	if _, said, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(said), `"serverInfo"`) {
		t.Errorf("over the WebSocket the server says %s, %v", said, err)
	}
	_ = conn.CloseNow()
	if res := web(t, browser, http.MethodGet, strings.Replace(endpoint, "/secure/mcp", "/healthz", 1), "", nil); res.status != http.StatusOK {
		t.Errorf("/healthz: %d", res.status)
	}
	if out, err := m.command("list").CombinedOutput(); err != nil || !strings.Contains(string(out), endpoint) {
		t.Errorf("dormouse list: %v\n%s", err, out)
	}
}

// If the certificate authority does not answer, the machine runs and says what to do.
func TestE2ETLSWithoutTheAuthoritySaysSo(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"secure": nil})
	m.start("--tls", "dormouse.test", "--authority", "https://"+commontest.FreeAddress(t)+"/dir", "--listen", commontest.FreeAddress(t), "--sockets", "127.0.0.1:0")
	if endpoint := m.urls["secure"]; !strings.HasPrefix(endpoint, "https://dormouse.test:") {
		t.Errorf("the address is %s", endpoint)
	}
	m.await(patience, "the missing certificate", func(e event) bool {
		return e.Kind == "certificate.failed" && strings.HasPrefix(e.Reason, "no certificate: ")
	})
}
