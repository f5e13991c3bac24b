// Package certs has the certificates of an endpoint: from files, or from a certificate authority
// such as Let's Encrypt, by ACME.
package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// Settings say where the certificate of an endpoint comes from. The zero value means no
// certificate.
type Settings struct {
	Domain    string // domain for which the authority issues certificates; "" for none
	Directory string // URL of the authority's ACME directory; "" is Let's Encrypt

	Cert, Key string // PEM files, if there is no Domain

	Redirect string // HOST:PORT of a plain HTTP listener that redirects callers to HTTPS; "" for none
}

// Secure reports whether the endpoint uses TLS.
func (s Settings) Secure() bool { return s.Domain != "" || s.Cert != "" }

// Check returns an error if the settings contradict each other.
func (s Settings) Check() error {
	switch {
	case s.Domain != "" && s.Cert+s.Key != "":
		return errors.New("--tls gets a certificate, and --tls-cert names one; use one of them")
	case s.Domain != "" && (!strings.Contains(s.Domain, ".") || s.Domain != strings.Trim(s.Domain, ".") || strings.ContainsAny(s.Domain, "*:/ ")):
		return fmt.Errorf("--tls is %q; want a domain such as mcp.example.com", s.Domain)
	case (s.Cert == "") != (s.Key == ""):
		return errors.New("--tls-cert and --tls-key belong together; name both files")
	}
	return nil
}

// Certs are the certificates of an endpoint.
type Certs struct {
	Settings
	manager *autocert.Manager               // nil if the certificate comes from files
	given   atomic.Pointer[tls.Certificate] // the last certificate from manager; nil before the first
	files   *files                          // nil if the certificate comes from an authority
}

// Open opens the certificates that the settings name. Certificates of an authority are kept in
// folder, with the account's key. If changed files of a certificate cannot be used, Certs calls
// failed, and goes on with the certificate that it has.
func Open(s Settings, folder string, failed func(error)) (*Certs, error) {
	if s.Domain == "" {
		f := &files{cert: s.Cert, key: s.Key, failed: failed}
		return &Certs{Settings: s, files: f}, f.read()
	}
	return &Certs{Settings: s, manager: &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(folder), HostPolicy: autocert.HostWhitelist(s.Domain),
		Client: &acme.Client{DirectoryURL: s.Directory, UserAgent: "dormouse"},
	}}, nil
}

// Config returns the TLS configuration of a listener. It allows HTTP/1.1 only, because the
// endpoint limits the number of connections, but not of streams in a connection.
func (c *Certs) Config() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if c.manager == nil {
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.files.newest(), nil }
		return config
	}
	config.NextProtos = append(config.NextProtos, acme.ALPNProto)
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == "" { // a client that knows only the address, such as a health check on this machine
			named := *hello
			named.ServerName = c.Domain
			hello = &named
		}
		return c.get(hello)
	}
	return config
}

// get returns the authority's certificate for a client, and stores it for Current.
func (c *Certs) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	given, err := c.manager.GetCertificate(hello)
	if err == nil {
		c.given.Store(given)
	}
	return given, err
}

// Current returns the certificate that clients get, in DER, or nil if there is none yet.
func (c *Certs) Current() []byte {
	now := c.given.Load()
	if c.manager == nil {
		now = c.files.newest()
	}
	if now == nil {
		return nil
	}
	return now.Certificate[0]
}

// Prepare requests the certificate from the authority if there is none yet, so that the first
// client need not wait for it.
func (c *Certs) Prepare() error {
	if c.manager == nil {
		return nil
	}
	_, err := c.get(&tls.ClientHelloInfo{ServerName: c.Domain, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}})
	return err
}

// Plain returns the handler for plain HTTP. It answers the authority's challenges. It redirects GET
// and HEAD requests to the endpoint at url, unless they have an API key. It refuses other requests,
// because a key in them has crossed the network unencrypted.
func (c *Certs) Plain(url string) http.Handler {
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Authorization") != "" {
			http.Error(w, "this endpoint speaks HTTPS: use "+url+"; a key that was sent without it should be replaced", http.StatusForbidden)
			return
		}
		http.Redirect(w, r, url+r.URL.RequestURI(), http.StatusPermanentRedirect)
	}))
	if c.manager != nil {
		h = c.manager.HTTPHandler(h)
	}
	return h
}

// files are a certificate and its key in two files, which another program may replace.
type files struct {
	cert, key string
	failed    func(error)

	mu      sync.Mutex
	now     *tls.Certificate
	changed [2]time.Time // modification times of both files at the last read
	said    string       // text of the last error passed to f.failed; "" after the files could be used
}

// read reads both files if they have changed since the last read.
func (f *files) read() error {
	var changed [2]time.Time
	for i, path := range []string{f.cert, f.key} {
		info, err := os.Stat(path)
		if err != nil {
			return f.unusable(err)
		}
		changed[i] = info.ModTime()
	}
	if changed == f.changed {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return f.unusable(err)
	}
	f.now, f.changed = &pair, changed
	return nil
}

func (f *files) unusable(err error) error {
	return fmt.Errorf("the certificate %s with the key %s cannot be used; want PEM files that belong together: %w", f.cert, f.key, err)
}

// newest returns the certificate in the files. While the files cannot be used, it returns the one
// before.
func (f *files) newest() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.read(); err == nil {
		f.said = ""
	} else if text := err.Error(); text != f.said {
		f.said = text
		f.failed(err)
	}
	return f.now
}
