package authserver

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
)

// client is a client that is known in one of three ways. The operator has registered it,
// it has registered itself, or its id is the URL of a document about it.
type client struct {
	id     string
	name   string // the name that the client gives itself; not verified
	site   string // host of the client's document; "" for a client without one
	secret bool   // the client must authenticate
	mark   string // name and redirect URIs of the client's document; "" for a client without one
	has    func(redirect string) bool
	check  func(secret string) bool
}

// listed returns the clients of the settings, each with the redirect URIs that can be used, and the
// web console for operators.
func listed(s resourceserver.Settings, log *slog.Logger) (map[string]resourceserver.Client, error) {
	all := map[string]resourceserver.Client{}
	for id, c := range s.Clients {
		good, wrong := usable(c.RedirectURIs, c.Secret != "")
		if len(good) == 0 {
			return nil, errors.New("access: client " + id + ": none of its redirect URIs can be used: " + wrong.Error())
		}
		if wrong != nil {
			log.Warn("redirect URIs of a client in access.clients are not used", "client", id, "reason", wrong.Error())
		}
		c.RedirectURIs = good
		all[id] = c
	}
	if len(s.Roles) > 0 {
		all[resourceserver.ConsoleClient] = resourceserver.Client{Name: "Dormouse", RedirectURIs: []string{s.PublicURL + resourceserver.ConsolePage}}
	}
	return all, nil
}

type clients struct {
	seals
	list      map[string]resourceserver.Client // the clients in the settings, and the console
	secrets   [][]byte                         // the keys with which clientSecret makes secrets; the first is the current one
	documents *documents
}

// unknownClient is the answer for an id that is unknown, wrong or too old.
func unknownClient() *refusal {
	return bad("invalid_client", "this client_id is not registered here; register the client again")
}

// client returns the client with an id.
//
// Errors: invalid_client; others if its document cannot be read now.
func (b *clients) client(ctx context.Context, id string) (client, error) {
	if len(id) > maxID {
		return client{}, unknownClient()
	}
	if c, ok := b.list[id]; ok {
		return client{
			id: id, name: c.Name, secret: c.Secret != "", has: func(uri string) bool { return lists(c.RedirectURIs, uri) },
			check: func(secret string) bool { return subtle.ConstantTimeCompare(sum(secret), sum(c.Secret)) == 1 },
		}, nil
	}
	if strings.HasPrefix(id, "https://") {
		return b.documents.client(ctx, id)
	}
	return b.registered(id)
}

func lists(registered []string, uri string) bool {
	for _, r := range registered {
		if r == uri || portless(r) == portless(uri) {
			return true
		}
	}
	return false
}

type registration struct {
	at     time.Time
	method byte     // index in authMethods
	hashes [][]byte // a hash of hashBytes bytes for each redirect URI
	name   string
}

const (
	clientPrefix = "dc_"
	clientLife   = 90 * 24 * time.Hour
	hashBytes    = 12
	maxURIs      = 10
	maxName      = 40 // bytes of a name that are kept
)

// registeredID seals a registration into an id, so nothing is stored for a client. The id has
// short hashes of the redirect URIs, because many clients keep ids in 255 characters.
func (b *clients) registeredID(r registration) string {
	plain := binary.BigEndian.AppendUint32(nil, uint32(r.at.Unix())) //nolint:gosec // until 2106
	plain = append(plain, r.method, byte(len(r.hashes)))
	for _, h := range r.hashes {
		plain = append(plain, h...)
	}
	return clientPrefix + b.seals[forClient].Seal(append(plain, r.name...))
}

// parseRegistration reads what registeredID sealed.
func parseRegistration(plain []byte) (r registration, ok bool) {
	if len(plain) < 6 {
		return r, false
	}
	r.at, r.method = time.Unix(int64(binary.BigEndian.Uint32(plain)), 0), plain[4]
	n := int(plain[5])
	if plain = plain[6:]; len(plain) < n*hashBytes || int(r.method) >= len(authMethods()) {
		return r, false
	}
	for i := range n {
		r.hashes = append(r.hashes, plain[i*hashBytes:(i+1)*hashBytes])
	}
	r.name = string(plain[n*hashBytes:])
	return r, true
}

func redirectHash(uri string) []byte { return sum(portless(uri))[:hashBytes] }

func (b *clients) registered(id string) (client, error) {
	sealed, ok := strings.CutPrefix(id, clientPrefix)
	plain, opened := b.seals[forClient].Open(sealed)
	r, parsed := parseRegistration(plain)
	if !ok || !opened || !parsed || time.Since(r.at) > clientLife {
		return client{}, unknownClient()
	}
	has := func(uri string) bool {
		for _, h := range r.hashes {
			if subtle.ConstantTimeCompare(h, redirectHash(uri)) == 1 {
				return true
			}
		}
		return false
	}
	return client{id: id, name: r.name, secret: r.method != 0, has: has, check: func(secret string) bool {
		for _, key := range b.secrets {
			if subtle.ConstantTimeCompare([]byte(secret), []byte(clientSecret(key, id))) == 1 {
				return true
			}
		}
		return false
	}}, nil
}

// clientSecret returns the secret of a registered client. The secret is computed, not stored.
func clientSecret(key []byte, id string) string {
	mac := hmac.New(sha256.New, append([]byte("dormouse client secret v1\x00"), key...))
	mac.Write([]byte(id))
	return "ds_" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// credentials are the id and the secret that a client has sent; secret is "" for none.
type credentials struct{ id, secret string }

// credentialsOf reads the Authorization header, or else the form (RFC 6749 §2.3.1).
func credentialsOf(r *http.Request, f url.Values) (credentials, error) {
	c := credentials{id: f.Get("client_id"), secret: f.Get("client_secret")}
	if r.Header.Get("Authorization") == "" {
		return c, nil
	}
	name, password, ok := r.BasicAuth()
	id, err := url.QueryUnescape(name)
	secret, err2 := url.QueryUnescape(password)
	if !ok || errors.Join(err, err2) != nil || len(r.Header.Values("Authorization")) > 1 {
		return c, bad("invalid_client", "the Authorization header cannot be read; send the client's id and secret as Basic, or in the form")
	}
	if c.secret != "" || c.id != "" && c.id != id {
		return c, bad("invalid_request", "the request names the client both in the Authorization header and in the form; use only one of them")
	}
	return credentials{id, secret}, nil
}

// authenticate returns the client that sent a request. A client without a secret may
// also send Basic with an empty password, as golang.org/x/oauth2 does at first.
func (b *clients) authenticate(r *http.Request, f url.Values) (client, error) {
	c, err := credentialsOf(r, f)
	if err != nil {
		return client{}, err
	}
	if c.id == "" {
		return client{}, bad("invalid_client", "the request names no client; send client_id")
	}
	known, err := b.client(r.Context(), c.id)
	if err != nil {
		return client{}, err
	}
	if !known.secret && c.secret == "" || known.secret && known.check(c.secret) {
		return known, nil
	}
	return client{}, unknownClient()
}

// document is the JSON that a client sends or publishes about itself (RFC 7591 §2).
type document struct {
	ID        string   `json:"client_id,omitempty"`
	Name      string   `json:"client_name,omitempty"`
	URI       string   `json:"client_uri,omitempty"`
	Redirects []string `json:"redirect_uris"`
	Method    string   `json:"token_endpoint_auth_method,omitempty"`
	Grants    []string `json:"grant_types,omitempty"`
	Responses []string `json:"response_types,omitempty"`
	Type      string   `json:"application_type,omitempty"`
	Scope     string   `json:"scope,omitempty"`
}

// register registers a client (RFC 7591). It stores nothing.
func (b *clients) register(w http.ResponseWriter, r *http.Request) error {
	var d document
	if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &d) != nil {
		return bad("invalid_client_metadata", "the body is not a JSON object with the metadata of a client (RFC 7591)")
	}
	method := byte(0)
	switch d.Method {
	case authPost:
		method = 1
	case authBasic:
		method = 2
	case "":
		d.Method = authNone // RFC 7591 says Basic, but clients that leave the method out have no secret
	case authNone:
	default:
		return bad("invalid_client_metadata", "the token_endpoint_auth_method is not supported; use one of "+strings.Join(authMethods(), ", "))
	}
	if len(d.Redirects) == 0 || len(d.Redirects) > maxURIs {
		return bad("invalid_redirect_uri", "a client needs 1 to 10 redirect URIs")
	}
	reg := registration{at: time.Now(), method: method, name: shorten(d.Name)}
	good, wrong := usable(d.Redirects, method != 0)
	if len(good) == 0 {
		return bad("invalid_redirect_uri", "none of the redirect URIs can be used: "+wrong.Error())
	}
	d.Redirects = good // the answer says what was kept (RFC 7591 §3.2.1)
	for _, uri := range good {
		reg.hashes = append(reg.hashes, redirectHash(uri))
	}
	id := b.registeredID(reg)
	answer := struct {
		document
		Issued  int64  `json:"client_id_issued_at"`
		Secret  string `json:"client_secret,omitempty"`
		Expires *int64 `json:"client_secret_expires_at,omitempty"`
	}{document: d, Issued: reg.at.Unix()}
	answer.ID, answer.Grants, answer.Responses, answer.Scope = id, []string{grantCode, grantRefresh}, []string{"code"}, ""
	if method != 0 {
		end := reg.at.Add(clientLife).Unix()
		answer.Secret, answer.Expires = clientSecret(b.secrets[0], id), &end
	}
	writeJSON(w, http.StatusCreated, answer)
	return nil
}

// shorten returns the printable part of a name, at most maxName bytes.
func shorten(name string) string {
	name = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 || c >= 0x2028 && c <= 0x202e || c >= 0x2066 && c <= 0x2069 || c == 0xfffd {
			return -1
		}
		return c
	}, name)
	end := 0
	for i, c := range name {
		if next := i + len(string(c)); next <= maxName {
			end = next
		}
	}
	return strings.TrimSpace(name[:end])
}
