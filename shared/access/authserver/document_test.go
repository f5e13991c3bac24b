package authserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
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

// documented returns a warm site, and the web where it looks for documents. Each URL has a good
// one, unless the test changes the answer.
func documented(t *testing.T) (*site, *web) {
	w := &web{answer: func(r *http.Request) (int, http.Header, string, error) {
		return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
	}}
	s := newSite(t, func(c *authserver.Config) { c.Documents = &http.Client{Transport: w} })
	s.warm = true
	return s, w
}

// changed makes changes in a document; nil removes a member.
func changed(document, changes map[string]any) map[string]any {
	maps.Copy(document, changes)
	maps.DeleteFunc(document, func(_ string, value any) bool { return value == nil })
	return document
}

func doc(id string, changes map[string]any) string {
	d := map[string]any{"client_id": id, "client_name": "Documented", "redirect_uris": []string{callback, "https://client.example/cb"}, "token_endpoint_auth_method": "none"}
	text, err := json.Marshal(changed(d, changes))
	if err != nil {
		panic(err)
	}
	return string(text)
}

const clientURL = "https://client.example/oauth/client.json"

func TestDocumentsThatAreNotGood(t *testing.T) {
	for name, body := range map[string]string{
		"another client": doc("https://client.example/other.json", nil), "no id": doc(clientURL, map[string]any{"client_id": nil}),
		"too long": doc(clientURL, map[string]any{"logo_uri": strings.Repeat("x", 6<<10)}), "no JSON": "<html>",
		"no URIs": doc(clientURL, map[string]any{"redirect_uris": nil}), "bad URIs": doc(clientURL, map[string]any{"redirect_uris": []string{"http://evil.example/"}}),
		"a secret": doc(clientURL, map[string]any{"client_secret": "x"}), "a secret's method": doc(clientURL, map[string]any{"token_endpoint_auth_method": "client_secret_post"}),
	} {
		s, w := documented(t)
		w.answer = func(*http.Request) (int, http.Header, string, error) { return http.StatusOK, http.Header{}, body, nil }
		for range 3 {
			s.wantPage(name, s.get(ask(request(clientURL))))
		}
		commontest.EqualIn(t, name+": requests for it", 1, w.asked.Load())
	}
}

// A document as VS Code publishes it, and one of a client that prefers a way of its own.
func TestDocumentsOfRealClients(t *testing.T) {
	for id, document := range map[string]string{
		"https://vscode.dev/oauth/client-metadata.json": `{"client_id":"https://vscode.dev/oauth/client-metadata.json","client_name":"Visual Studio Code","redirect_uris":["http://127.0.0.1:33418/","http://127.0.0.1:5000/cb","https://vscode.dev/redirect"],"token_endpoint_auth_method":"none"}`,
		"https://chatgpt.com/oauth/abc/client.json":     `{"client_id":"https://chatgpt.com/oauth/abc/client.json","client_name":"ChatGPT","redirect_uris":["http://127.0.0.1/cb"],"token_endpoint_auth_method":"private_key_jwt","token_endpoint_auth_methods_supported":["private_key_jwt","none"],"jwks_uri":"https://chatgpt.com/jwks.json"}`,
	} {
		s, w := documented(t)
		w.answer = func(*http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{"Cache-Control": {"max-age=3600"}}, document, nil
		}
		target := ask(request(id, "scope", ""))
		commontest.Contains(t, id, "<dt>The client is from</dt><dd>"+strings.Split(id, "/")[2]+"</dd>", text(t, s.get(target)))
		got := s.granted(redeeming(id, s.browser().signIn(target, "ada", "").Get("code")))
		if !s.good(got["access_token"].(string), "files") || w.asked.Load() != 1 {
			t.Error(id, got, w.asked.Load())
		}
	}
}

func TestAChangedDocumentNeedsANewConsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := documented(t)
		name, uris := "Documented", []string{callback, "https://client.example/cb"}
		w.answer = func(*http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, doc(clientURL, map[string]any{"client_name": name, "redirect_uris": uris}), nil
		}
		target := ask(request(clientURL, "redirect_uri", "https://client.example/cb"))
		b := s.browser()
		b.signIn(target, "ada", "")
		if got := b.get(target).StatusCode; got != http.StatusSeeOther {
			t.Fatal("the consent does not hold:", got)
		}
		name = "Changed"
		commontest.EqualIn(t, "the document is not kept", http.StatusSeeOther, b.get(target).StatusCode)
		time.Sleep(6 * time.Minute)
		page := b.get(target)
		if page.StatusCode != http.StatusOK || w.asked.Load() != 2 {
			t.Error("the document was read again and has changed:", page.Status, w.asked.Load())
		}
		uris = uris[:1]
		time.Sleep(6 * time.Minute)
		f := with(fields(text(t, page)), "answer", "allow")
		s.wantPage("the address was taken out while the page was open", b.open(http.MethodPost, at+"/authorize", f))
	})
}

func TestNoRequestForOddIDs(t *testing.T) {
	s, w := documented(t)
	w.answer = func(*http.Request) (int, http.Header, string, error) { return 0, nil, "", errors.New("not reached") }
	for _, id := range []string{
		"http://client.example/c.json", "https://client.example:22/c.json", "https://client.example/", "https://user@client.example/c.json", "https://client.example/c.json#f",
		"https://client.example/../c.json", "https:///c.json", "https://" + strings.Repeat("a", 600) + "/c", "https://client.example\\@evil.example/c.json", "file:///etc/passwd",
	} {
		s.wantPage(id, s.get(ask(request(id))))
	}
	commontest.EqualIn(t, "requests", 0, w.asked.Load())
}

// The client for documents refuses addresses when it dials, so no name and no redirect
// gets around that.
func TestOnlyPublicAddressesAreDialled(t *testing.T) {
	s := newSite(t, nil)
	for _, host := range []string{
		"127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
	} {
		res := s.get(ask(request("https://" + host + "/c.json")))
		if page := text(t, res); res.StatusCode != http.StatusBadRequest || !strings.Contains(page, "cannot be fetched") {
			t.Errorf("%s: %s %s", host, res.Status, page)
		}
	}
	for _, address := range []string{
		"127.0.0.1:443", "169.254.169.254:443", "[::ffff:10.0.0.1]:443", "[fc00::1]:443", "93.184.215.14:80", "93.184.215.14:8443", "nonsense",
	} {
		if err := authserver.CheckAddress(address); err == nil {
			t.Errorf("%s would be dialled", address)
		}
	}
	for _, address := range []string{"93.184.215.14:443", "[2606:4700::1111]:443"} {
		commontest.Check(t, authserver.CheckAddress(address))
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	s, w := documented(t)
	w.answer = func(r *http.Request) (int, http.Header, string, error) {
		return http.StatusFound, http.Header{"Location": {"https://169.254.169.254/"}}, "", nil
	}
	s.config.Documents.CheckRedirect = authserver.NewPublicClient().CheckRedirect
	s.wantPage("a redirect", s.get(ask(request(clientURL))))
	commontest.EqualIn(t, "requests", 1, w.asked.Load())
}

func TestDocumentsOfOtherHostsCanBeRefused(t *testing.T) {
	s, w := documented(t)
	s.config.ClientHosts = []string{"claude.ai"}
	for id, want := range map[string]int{"https://claude.ai/c.json": http.StatusOK, "https://evil.example/c.json": http.StatusBadRequest, "https://claude.ai.evil.example/c.json": http.StatusBadRequest} {
		commontest.EqualIn(t, id, want, s.get(ask(request(id))).StatusCode)
	}
	commontest.EqualIn(t, "requests", 1, w.asked.Load())
}

// A stranger names URLs, of hosts that answer and of hosts that do not, and registers clients.
// Nothing is stored until a user has signed in.
func TestStrangersStoreNothing(t *testing.T) {
	s, w := documented(t)
	w.answer = func(r *http.Request) (int, http.Header, string, error) {
		if strings.HasPrefix(r.URL.Host, "10.") {
			return 0, nil, "", errors.New("not reached")
		}
		return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
	}
	for i := range 20 {
		for _, host := range []string{"10.0.0.1", "client.example"} {
			s.get(ask(request(fmt.Sprintf("https://%s/%d.json", host, i))))
		}
	}
	s.register(cursor()...)
	commontest.EqualIn(t, "writes", 0, s.store.Counts().Writes)
}

// Fetches that strangers cause are few at a time, for one host and for all. Further
// requests wait.
func TestFetchesAtATimeAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		id   string // %d is the number of the request
		most int32  // fetches at a time
	}{
		"one host":       {"https://client.example/%d.json", 2},
		"many hosts":     {"https://c%d.example/c.json", 16},
		"case of a host": {"https://client.EXAMPLE/%d.json", 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := documented(t)
				var now, most atomic.Int32
				gate := make(chan struct{})
				w.answer = func(r *http.Request) (int, http.Header, string, error) {
					n := now.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					<-gate
					now.Add(-1)
					return http.StatusOK, http.Header{}, doc(r.URL.String(), nil), nil
				}
				s.broker()
				var all sync.WaitGroup
				for i := range 40 {
					all.Go(func() {
						commontest.Equal(t, http.StatusOK, s.get(ask(request(fmt.Sprintf(test.id, i)))).StatusCode)
					})
				}
				synctest.Wait()
				commontest.EqualIn(t, "fetches at a time", test.most, now.Load())
				close(gate)
				all.Wait()
				if most.Load() > test.most {
					t.Errorf("%d fetches at a time", most.Load())
				}
			})
		})
	}
}
