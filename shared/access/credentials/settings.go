package credentials

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/address"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Provider is a third party, as x-dormouse.connect describes it. With Authorize, its users connect
// it by OAuth. With Exchange, users need only sign in here. With neither, users give an API key.
type Provider struct {
	Title string `json:"title"` // the name of the third party on pages; "" for its name in the file
	Help  string `json:"help"`  // where users get an API key, for the page

	Authorize    string            `json:"authorize"` // authorization endpoint of OAuth
	Token        string            `json:"token"`     // token endpoint
	ClientID     string            `json:"client_id"`
	ClientSecret string            `json:"client_secret"`
	Auth         string            `json:"auth"` // how the client names itself at the token endpoint: "post", or "basic"
	Scopes       []string          `json:"scopes"`
	Params       map[string]string `json:"params"`   // further parameters for the authorization endpoint
	Resource     string            `json:"resource"` // what the token is for, as a URL (RFC 8707); "": the parameter is not sent
	Issuer       string            `json:"issuer"`   // what iss must be in an answer that has it; "" for any
	Exchange     *Exchange         `json:"exchange"`
}

// ReadSecrets reads a JSON object with client secrets by the names of third parties. The
// error does not quote the text.
func ReadSecrets(text string) (secrets map[string]string, err error) {
	if json.Unmarshal([]byte(text), &secrets) != nil {
		return nil, errors.New(`no JSON object of texts; want the client secret of each third party, such as {"github":"…"}`)
	}
	return secrets, nil
}

// ReadProviders reads the section x-dormouse.connect, nil for none. The argument secrets has
// client secrets by the names of third parties, which replace those of the section. The error
// names the wrong setting, without its value.
func ReadProviders(section []byte, secrets map[string]string) (map[string]Provider, error) {
	if section == nil {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(section))
	d.DisallowUnknownFields()
	var all map[string]Provider
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("x-dormouse.connect: %w", wire.WrongShape(err))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		p.ClientSecret = cmp.Or(secrets[name], p.ClientSecret)
		all[name] = p
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("x-dormouse.connect: %s: %w", name, err)
		}
	}
	return all, nil
}

func (p Provider) check() error {
	for key, value := range map[string]string{"authorize": p.Authorize, "token": p.Token, "client_id": p.ClientID, "client_secret": p.ClientSecret} {
		if strings.Contains(value, "${") {
			return fmt.Errorf("%s has a variable that is not set; set it, or put it into .env beside the file", key)
		}
	}
	for key, at := range map[string]string{"authorize": p.Authorize, "token": p.Token} {
		if at != "" && !isSafe(at) {
			return fmt.Errorf("%s must be an https URL without a fragment", key)
		}
	}
	switch {
	case p.Exchange != nil && p.Authorize != "":
		return errors.New("authorize and exchange exclude each other; leave one of them out")
	case p.Exchange != nil && p.Token == "":
		return errors.New("exchange needs token: set it to the token endpoint of the identity provider where users sign in")
	case p.Exchange != nil && p.Exchange.Audience == "" && p.Exchange.Resource == "" && len(p.Scopes) == 0:
		return errors.New("exchange says nothing of the token that is wanted; set audience or resource in it, or scopes beside it")
	case p.Exchange != nil && p.ClientID == "":
		return errors.New("client_id is not set; take the one with which users sign in here")
	case p.Exchange == nil && (p.Authorize == "") != (p.Token == ""):
		return errors.New("authorize and token go together; set both, or neither for an API key")
	case p.oauth() && p.ClientID == "":
		return errors.New("client_id is not set; register this endpoint at the third party")
	case p.Auth != "" && p.Auth != "post" && p.Auth != "basic":
		return errors.New("auth must be post or basic")
	}
	return nil
}

// isSafe reports whether a secret may be sent to a URL.
func isSafe(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && address.Loopback(u.Hostname())
}

func (p Provider) oauth() bool { return p.Authorize != "" }
