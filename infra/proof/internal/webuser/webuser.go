// Package webuser goes through the pages of a sign-in, as a person at a browser does. It
// follows redirects, keeps cookies, and fills in and sends forms. It runs no scripts.
package webuser

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// maxPages bounds the pages of one sign-in.
const maxPages = 20

// User is a person with a browser. It is used by one goroutine at a time.
type User struct {
	answers map[string]string
	web     *http.Client
}

// New makes a User with a browser that has no cookies. The argument answers says what the user
// enters into fields, and which of several buttons they press, by the name of the field or button.
// Other fields keep the values of the page. Without an answer for a button, the first one is pressed.
func New(answers map[string]string) *User {
	jar, err := cookiejar.New(nil)
	if err != nil {
		panic("webuser: " + err.Error()) // cookiejar.New(nil) never fails
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &User{answers: answers, web: &http.Client{Jar: loopbackJar{jar}, CheckRedirect: stay}}
}

// Ada is what a user enters who agrees to everything: the name ada, with the password
// lovelace.
func Ada() map[string]string {
	return map[string]string{"answer": "allow", "name": "ada", "username": "ada", "password": "lovelace"}
}

// loopbackJar also sends secure cookies over http, as browsers do on loopback.
type loopbackJar struct{ http.CookieJar }

func (j loopbackJar) SetCookies(u *url.URL, cookies []*http.Cookie) {
	for _, c := range cookies {
		c.Secure = false
	}
	j.CookieJar.SetCookies(u, cookies)
}

// Page is where a sign-in has ended.
type Page struct {
	URL  *url.URL
	Text string // HTML
}

// Visit goes to a URL and on from there. It ends before a redirect to a URL with this prefix, and
// otherwise at the first page without a form. An empty prefix stands for no URL.
func (u *User) Visit(ctx context.Context, from, prefix string) (Page, error) {
	method, target, form := http.MethodGet, from, url.Values(nil)
	for range maxPages {
		r, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(form.Encode()))
		if err != nil {
			return Page{}, err
		}
		if method == http.MethodPost {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		res, err := u.web.Do(r)
		if err != nil {
			return Page{}, err
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // only read
		if err != nil {
			return Page{}, err
		}
		if to, err := res.Location(); err == nil {
			if prefix != "" && strings.HasPrefix(to.String(), prefix) {
				return Page{URL: to}, nil
			}
			method, target, form = http.MethodGet, to.String(), nil
			continue
		}
		at := Page{r.URL, string(text)}
		f, err := findForm(at)
		if err != nil {
			return at, err
		}
		if f == nil {
			return at, nil
		}
		if form = f.fill(u.answers); f.method == http.MethodGet {
			f.action.RawQuery, form = form.Encode(), nil
		}
		method, target = f.method, f.action.String()
	}
	return Page{}, fmt.Errorf("the sign-in from %s has more than %d pages; the last was %s", from, maxPages, target)
}

type formOf struct {
	method string
	action *url.URL
	fields url.Values // as the page has filled them in
	names  map[string]bool
	press  []button // in the order of the page
}

type button struct{ name, value string }

// findForm returns the first form of a page, nil if there is none.
func findForm(page Page) (*formOf, error) {
	root, err := html.Parse(strings.NewReader(page.Text))
	if err != nil {
		return nil, err
	}
	for node := range root.Descendants() {
		if node.Type == html.ElementNode && node.Data == "form" {
			return readForm(page, node)
		}
	}
	return nil, nil
}

func readForm(page Page, node *html.Node) (*formOf, error) {
	f := &formOf{method: strings.ToUpper(attribute(node, "method")), fields: url.Values{}, names: map[string]bool{}}
	if f.method != http.MethodPost {
		f.method = http.MethodGet
	}
	var err error
	if f.action, err = page.URL.Parse(attribute(node, "action")); err != nil {
		return nil, err
	}
	for field := range node.Descendants() {
		name, value := attribute(field, "name"), attribute(field, "value")
		if field.Type != html.ElementNode || name == "" {
			continue
		}
		switch kind := attribute(field, "type"); {
		case field.Data == "button", field.Data == "input" && kind == "submit":
			f.press = append(f.press, button{name, value})
		case field.Data == "input" && kind != "checkbox" && kind != "radio":
			f.names[name] = true
			f.fields.Set(name, value)
		case field.Data == "select":
			f.names[name] = true
		}
	}
	return f, nil
}

// fill returns the values of the form, with the user's answers and the button that the
// user presses.
func (f *formOf) fill(answers map[string]string) url.Values {
	sent := url.Values{}
	for name, values := range f.fields {
		sent[name] = values
	}
	for name := range f.names {
		if answer, ok := answers[name]; ok {
			sent.Set(name, answer)
		}
	}
	at := slices.IndexFunc(f.press, func(b button) bool { return answers[b.name] == b.value })
	if len(f.press) > 0 {
		sent.Set(f.press[max(at, 0)].name, f.press[max(at, 0)].value)
	}
	return sent
}

func attribute(node *html.Node, name string) string {
	for _, a := range node.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}
