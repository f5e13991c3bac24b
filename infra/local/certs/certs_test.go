package certs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/certs"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// pair writes a certificate for a name, signed by itself, and its key.
func pair(t *testing.T, folder, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	commontest.OK(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	commontest.OK(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	commontest.OK(t, err)
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return cert, key
}

func write(t *testing.T, path, text string) {
	t.Helper()
	commontest.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

// age makes files as old as a number of hours.
func age(t *testing.T, hours time.Duration, paths ...string) {
	t.Helper()
	for _, path := range paths {
		at := time.Now().Add(-hours * time.Hour)
		commontest.OK(t, os.Chtimes(path, at, at))
	}
}

// shown returns the name in the certificate that a client gets.
func shown(t *testing.T, config *tls.Config) string {
	t.Helper()
	c, err := config.GetCertificate(&tls.ClientHelloInfo{ServerName: "any"})
	commontest.OK(t, err)
	return c.Leaf.Subject.CommonName
}

func TestFilesThatHaveChangedAreReadAgain(t *testing.T) {
	folder := t.TempDir()
	cert, key := pair(t, folder, "one.test")
	age(t, 3, cert, key)
	var failed []string
	c, err := certs.Open(certs.Settings{Cert: cert, Key: key}, "", func(err error) { failed = append(failed, err.Error()) })
	commontest.OK(t, err)
	config := c.Config()
	commontest.EqualIn(t, "the certificate is for", "one.test", shown(t, config))
	pair(t, folder, "two.test")
	age(t, 2, cert, key)
	if name := shown(t, config); name != "two.test" || len(failed) > 0 {
		t.Errorf("after a renewal the certificate is for %s, %q", name, failed)
	}
	// A program that renews the certificate writes one file after the other.
	write(t, key, "half a key")
	age(t, 1, key)
	for range 3 {
		commontest.EqualIn(t, "with a broken key the certificate is for", "two.test", shown(t, config))
	}
	if len(failed) != 1 || !strings.Contains(failed[0], cert) || !strings.Contains(failed[0], "want PEM files that belong together") {
		t.Errorf("the failure was told as %q, want it once", failed)
	}
	commontest.OK(t, os.Remove(key))
	for range 3 {
		shown(t, config)
	}
	if len(failed) != 2 {
		t.Errorf("a missing key was told as %q, want it once", failed[1:])
	}
	pair(t, folder, "three.test")
	commontest.EqualIn(t, "after the repair the certificate is for", "three.test", shown(t, config))
}

func TestFilesThatCannotBeReadAreRefused(t *testing.T) {
	folder := t.TempDir()
	cert, _ := pair(t, folder, "one.test")
	for _, key := range []string{cert, filepath.Join(folder, "missing")} {
		if _, err := certs.Open(certs.Settings{Cert: cert, Key: key}, "", nil); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("with the key %s: %v", key, err)
		}
	}
}

func TestSettingsThatContradictEachOtherAreRefused(t *testing.T) {
	for want, s := range map[string]certs.Settings{
		"":                 {},
		"use one of them":  {Domain: "a.test", Cert: "c", Key: "k"},
		"want a domain":    {Domain: "localhost"},
		"a domain such as": {Domain: "https://a.test"},
		"belong together":  {Cert: "c"},
	} {
		err := s.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

// A GET request over HTTP is redirected to HTTPS. A request that has a key, or may have
// one, is refused, and the answer says that the key should be replaced.
func TestPagesAreSentToHTTPSAndKeysAreNot(t *testing.T) {
	cert, key := pair(t, t.TempDir(), "one.test")
	c, err := certs.Open(certs.Settings{Cert: cert, Key: key}, "", nil)
	commontest.OK(t, err)
	h := c.Plain("https://one.test:8443")
	for _, test := range []struct {
		method, authorization string
		status                int
		location              string
	}{
		{"GET", "", http.StatusPermanentRedirect, "https://one.test:8443/files/mcp?a=b"},
		{"GET", "Bearer key", http.StatusForbidden, ""},
		{"POST", "", http.StatusForbidden, ""},
	} {
		r := httptest.NewRequestWithContext(t.Context(), test.method, "http://evil.test/files/mcp?a=b", nil)
		if test.authorization != "" {
			r.Header.Set("Authorization", test.authorization)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.status || w.Header().Get("Location") != test.location {
			t.Errorf("%s with %q: %d to %q", test.method, test.authorization, w.Code, w.Header().Get("Location"))
		}
		if test.status == http.StatusForbidden && !strings.Contains(w.Body.String(), "use https://one.test:8443; a key") {
			t.Errorf("%s: the caller reads %q", test.method, w.Body)
		}
	}
}
