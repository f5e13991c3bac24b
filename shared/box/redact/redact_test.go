package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestSecretsAreHidden(t *testing.T) {
	hide := New(map[string]string{
		"api_key": "sk-abcdef", "GITHUB_TOKEN": "sk-abcdef-and-more", "DB_PASSWORD": "pass\nword\nrs",
		"SHORT_SECRET": "12345", "REGION": "eu-central-1", "PIN": "789", "EMPTY": "",
	}, []string{"PIN", "EMPTY", "MISSING"})
	for in, want := range map[string]string{
		"key sk-abcdef.":             "key ***.",
		"sk-abcdef-and-more":         "***",
		"sk-abcdefsk-abcdef":         "******",
		"pass\nword\nrs":             "***",
		"12345 in eu-central-1":      "12345 in ***",
		"marked 789":                 "marked ***",
		"half of it: sk-abcdef-and-": "half of it: ***-and-",
	} {
		commontest.EqualIn(t, in, want, hide.Text(in))
	}
}

func TestOfAProxyOnlyThePasswordIsHidden(t *testing.T) {
	hide := New(nil, nil)
	for _, proxy := range []string{"http://ada:hunter%20two@proxy.example:3128/", "bob:swordfish@other.example:80", "http://plain.example:3128", "http://tokenalone@proxy.example", "localhost,127.0.0.1", ""} {
		hide.HideProxy(proxy)
	}
	for in, want := range map[string]string{
		"proxy.example:3128 refuses hunter two": "proxy.example:3128 refuses ***",
		"hunter%20two, swordfish":               "***, ***",
		"tokenalone":                            "***",
		"http://ada:x@proxy.example":            "http://***@proxy.example",
		"Basic " + base64.StdEncoding.EncodeToString([]byte("bob:swordfish")): "Basic Ym9iOn***A==",
		"plain.example:3128 at localhost":                                     "plain.example:3128 at localhost",
	} {
		commontest.EqualIn(t, in, want, hide.Text(in))
	}
}

func TestSecretsAreHiddenInEveryForm(t *testing.T) {
	const key, url1 = `sk-very/secret+0123"456<789é`, "postgres://u:hunter2%20secret@db.example.com/x?sslmode=off"
	hide := New(map[string]string{
		"ANY": key, "DATABASE_URL": url1, "HEADER": "Authorization: Bearer abcdefgh.ijklmnop",
		"DSN": "host=db password=pass-w0rd-plain user=me", "REPO": "https://ghp_0123456789@github.com/x",
	}, nil)
	quoted := func(v any) string {
		text, err := json.Marshal(v)
		commontest.OK(t, err)
		return string(text)
	}
	for name, said := range map[string]string{
		"plain":                    key,
		"base64":                   base64.StdEncoding.EncodeToString([]byte(key)),
		"base64 behind a user":     base64.StdEncoding.EncodeToString([]byte("u:" + key)),
		"base64 behind more":       base64.StdEncoding.EncodeToString([]byte("user:" + key + "\n")),
		"base64 for URLs":          base64.RawURLEncoding.EncodeToString([]byte(key)),
		"base64 in lines":          base64.StdEncoding.EncodeToString([]byte(key))[:20] + "\n" + base64.StdEncoding.EncodeToString([]byte(key))[20:],
		"hexadecimal":              hex.EncodeToString([]byte(key)),
		"in a query":               "?key=" + url.QueryEscape(key),
		"in a path":                "/" + url.PathEscape(key),
		"in a query, in lowercase": lowerHex.ReplaceAllStringFunc(url.QueryEscape(key), strings.ToLower),
		"JSON":                     quoted(map[string]string{"key": key}),
		"JSON in JSON":             quoted(quoted(map[string]string{"key": "abcdefgh.ijklmnop"})),
		"split over lines":         key[:9] + "\n" + key[9:],
		"split and indented":       key[:9] + "\r\n\t  " + key[9:],
		"an address":               url1,
		"its password":             `password authentication failed with "hunter2 secret"`,
		"its password as it is":    "hunter2%20secret",
		"the token of an address":  "ghp_0123456789",
		"a word":                   "token abcdefgh.ijklmnop is wrong",
		"of a connection string":   "pass-w0rd-plain rejected",
		"an address of others":     "cannot connect to redis://:another@cache:6379",
	} {
		got := hide.Text(said)
		for _, part := range []string{"sk-very", "456", "hunter2", "secret", "ghp_", "ijkl", "w0rd", "another", "c2stdmVye", "dmVyeS9z"} {
			if strings.Contains(got, part) {
				t.Errorf("%s: %q becomes %q", name, said, got)
			}
		}
		commontest.Contains(t, name, Hidden, got)
	}
	const harmless = "listening on https://example.com/a@b, 3 tools\nready"
	commontest.Equal(t, harmless, hide.Text(harmless))
}
