package authserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

// web answers requests for documents without a network, and counts them.
type web struct {
	asked  atomic.Int32
	answer func(*http.Request) (status int, header http.Header, body string, err error)
}

func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked.Add(1)
	status, header, body, err := w.answer(r)
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, err
}

// documented returns a warm site, and the web where it looks for documents.
func documented(t *testing.T, open storetest.Open) (*site, *web) {
	w := &web{}
	s := newSite(t, open, func(c *authserver.Config) { c.Documents = &http.Client{Transport: w} })
	s.warm = true
	return s, w
}

func doc(id string, changes map[string]any) string {
	d := map[string]any{"client_id": id, "client_name": "Documented", "redirect_uris": []string{callback, "https://client.example/cb"}, "token_endpoint_auth_method": "none"}
	for name, value := range changes {
		if d[name] = value; value == nil {
			delete(d, name)
		}
	}
	text, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return string(text)
}

const clientURL = "https://client.example/oauth/client.json"

func TestDocumentsThatAreNotGood(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		for name, body := range map[string]string{
			"another client": doc("https://client.example/other.json", nil), "no id": doc(clientURL, map[string]any{"client_id": nil}),
			"too long": doc(clientURL, map[string]any{"logo_uri": strings.Repeat("x", 6<<10)}), "no JSON": "<html>", "empty": "",
			"no URIs": doc(clientURL, map[string]any{"redirect_uris": nil}), "bad URIs": doc(clientURL, map[string]any{"redirect_uris": []string{"http://evil.example/"}}),
			"a secret": doc(clientURL, map[string]any{"client_secret": "x"}), "a secret's method": doc(clientURL, map[string]any{"token_endpoint_auth_method": "client_secret_post"}),
		} {
			t.Run(name, func(t *testing.T) {
				s, w := documented(t, open)
				w.answer = func(*http.Request) (int, http.Header, string, error) { return http.StatusOK, http.Header{}, body, nil }
				_, challenge := pkce()
				for range 3 {
					res := s.browser().open(http.MethodGet, at+"/authorize?"+request(clientURL, challenge).Encode(), nil)
					if res.StatusCode != http.StatusBadRequest || res.Header.Get("Location") != "" {
						t.Error(res.Status)
					}
				}
				if w.asked.Load() != 1 {
					t.Errorf("%d requests for it, want one a minute", w.asked.Load())
				}
			})
		}
	})
}

// Documents as Claude Code, VS Code and ChatGPT publish them.
func TestDocumentsOfRealClients(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		for id, document := range map[string]string{
			"https://claude.ai/oauth/claude-code-client-metadata": `{"client_id":"https://claude.ai/oauth/claude-code-client-metadata","client_name":"Claude Code","client_uri":"https://claude.ai","redirect_uris":["http://localhost/callback","http://127.0.0.1/callback"],"grant_types":["authorization_code","refresh_token"],"response_types":["code"],"token_endpoint_auth_method":"none"}`,
			"https://vscode.dev/oauth/client-metadata.json":       `{"client_id":"https://vscode.dev/oauth/client-metadata.json","client_name":"Visual Studio Code","redirect_uris":["http://127.0.0.1:33418/","http://127.0.0.1/","https://vscode.dev/redirect"],"token_endpoint_auth_method":"none"}`,
			"https://chatgpt.com/oauth/abc/client.json":           `{"client_id":"https://chatgpt.com/oauth/abc/client.json","client_name":"ChatGPT","redirect_uris":["https://chatgpt.com/connector/oauth/abc"],"token_endpoint_auth_method":"private_key_jwt","token_endpoint_auth_methods_supported":["private_key_jwt","none"],"jwks_uri":"https://chatgpt.com/jwks.json"}`,
		} {
			s, w := documented(t, open)
			w.answer = func(*http.Request) (int, http.Header, string, error) {
				return http.StatusOK, http.Header{"Cache-Control": {"max-age=3600"}}, document, nil
			}
			redirect := map[bool]string{true: "https://chatgpt.com/connector/oauth/abc", false: "http://127.0.0.1:41234/callback"}[strings.Contains(id, "chatgpt")]
			if strings.Contains(id, "vscode") {
				redirect = "http://127.0.0.1:41234/"
			}
			verifier, challenge := pkce()
			b := s.browser()
			page := text(t, b.open(http.MethodGet, at+"/authorize?"+request(id, challenge, "redirect_uri", redirect, "scope", "").Encode(), nil))
			u, err := url.Parse(id)
			if err != nil || !strings.Contains(page, "<dt>The client is from</dt><dd>"+u.Host+"</dd>") {
				t.Error(id, page)
			}
			to := b.begin(at + "/authorize?" + request(id, challenge, "redirect_uri", redirect, "scope", "").Encode())
			f := fields(text(t, b.open(http.MethodGet, to, nil)))
			f.Set("name", "ada")
			back, err := url.Parse(b.open(http.MethodGet, b.open(http.MethodPost, at+"/login", f).Header.Get("Location"), nil).Header.Get("Location"))
			commontest.OK(t, err)
			status, got := s.token(url.Values{"grant_type": {"authorization_code"}, "code": {back.Query().Get("code")}, "redirect_uri": {redirect}, "client_id": {id}, "code_verifier": {verifier}})
			if status != http.StatusOK || !s.good(got["access_token"].(string), "files") || w.asked.Load() != 1 {
				t.Error(id, status, got, w.asked.Load())
			}
		}
	})
}

func TestAChangedDocumentNeedsANewConsent(t *testing.T) {
	storetest.InTime(t, func(t *testing.T, open storetest.Open) {
		s, w := documented(t, open)
		name := "Documented"
		w.answer = func(*http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, doc(clientURL, map[string]any{"client_name": name}), nil
		}
		_, challenge := pkce()
		target := at + "/authorize?" + request(clientURL, challenge, "redirect_uri", "https://client.example/cb").Encode()
		b := s.browser()
		b.signIn(target, "ada", "")
		if got := b.open(http.MethodGet, target, nil).StatusCode; got != http.StatusSeeOther {
			t.Fatal("the consent does not hold:", got)
		}
		name = "Changed"
		commontest.EqualIn(t, "the document is not kept", http.StatusSeeOther, b.open(http.MethodGet, target, nil).StatusCode)
		time.Sleep(6 * time.Minute)
		if got := b.open(http.MethodGet, target, nil).StatusCode; got != http.StatusOK || w.asked.Load() != 2 {
			t.Error("the document was read again and has changed:", got, w.asked.Load())
		}
	})
}

func TestNoRequestForOddIDs(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		s, w := documented(t, open)
		w.answer = func(*http.Request) (int, http.Header, string, error) { return 0, nil, "", errors.New("not reached") }
		_, challenge := pkce()
		for _, id := range []string{
			"http://client.example/c.json", "https://client.example:22/c.json", "https://client.example", "https://client.example/", "https://user@client.example/c.json",
			"https://client.example/c.json#f", "https://client.example/../c.json", "https://client.example/./c.json", "https:///c.json", "https://" + strings.Repeat("a", 600) + "/c",
			"https://client example/c.json", "https://client.example\\@evil.example/c.json", "ftp://client.example/c.json", "file:///etc/passwd",
		} {
			res := s.browser().open(http.MethodGet, at+"/authorize?"+request(id, challenge).Encode(), nil)
			if res.StatusCode != http.StatusBadRequest || w.asked.Load() != 0 {
				t.Errorf("%s: %s, %d requests", id, res.Status, w.asked.Load())
			}
		}
	})
}

// The client for documents refuses addresses when it dials, so no name and no redirect
// gets around that.
func TestOnlyPublicAddressesAreDialled(t *testing.T) {
	one(t, func(t *testing.T, s *site) {
		_, challenge := pkce()
		for _, host := range []string{
			"127.0.0.1", "localhost", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1",
			"[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[fd00:ec2::254]", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]", "[2001:db8::1]", "[ff02::1]",
		} {
			res := s.browser().open(http.MethodGet, at+"/authorize?"+request("https://"+host+"/c.json", challenge).Encode(), nil)
			if page := text(t, res); res.StatusCode != http.StatusBadRequest || !strings.Contains(page, "cannot be fetched") {
				t.Errorf("%s: %s %s", host, res.Status, page)
			}
		}
		for _, address := range []string{
			"127.0.0.1:443", "10.1.2.3:443", "100.64.0.1:443", "169.254.169.254:443", "[::1]:443", "[::ffff:10.0.0.1]:443", "[64:ff9b::a00:1]:443", "[2002:a00:1::]:443", "[fc00::1]:443",
			"93.184.215.14:80", "93.184.215.14:22", "93.184.215.14:8443", "nonsense",
		} {
			if err := authserver.CheckAddress(address); err == nil {
				t.Errorf("%s would be dialled", address)
			}
		}
		for _, address := range []string{"93.184.215.14:443", "[2606:4700::1111]:443"} {
			commontest.Check(t, authserver.CheckAddress(address))
		}
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		s, w := documented(t, open)
		w.answer = func(r *http.Request) (int, http.Header, string, error) {
			return http.StatusFound, http.Header{"Location": {"https://169.254.169.254/"}}, "", nil
		}
		s.config.Documents.CheckRedirect = authserver.NewPublicClient().CheckRedirect
		_, challenge := pkce()
		res := s.browser().open(http.MethodGet, at+"/authorize?"+request(clientURL, challenge).Encode(), nil)
		if res.StatusCode != http.StatusBadRequest || w.asked.Load() != 1 {
			t.Error(res.Status, w.asked.Load())
		}
	})
}

func TestDocumentsOfOtherHostsCanBeRefused(t *testing.T) {
	s, w := documented(t, storetest.SQLite)
	s.config.ClientHosts = []string{"claude.ai"}
	w.answer = func(r *http.Request) (int, http.Header, string, error) {
		return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
	}
	_, challenge := pkce()
	for id, want := range map[string]int{"https://claude.ai/c.json": http.StatusOK, "https://evil.example/c.json": http.StatusBadRequest, "https://claude.ai.evil.example/c.json": http.StatusBadRequest} {
		t.Run(id, func(t *testing.T) {
			if res := s.browser().open(http.MethodGet, at+"/authorize?"+request(id, challenge).Encode(), nil); res.StatusCode != want {
				t.Error(id, res.Status)
			}
		})
	}
	if w.asked.Load() != 1 {
		t.Error(fmt.Sprint(w.asked.Load(), " requests"))
	}
}
