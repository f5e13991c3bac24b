package oauth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Rule says which callers may use a server. One matching part is enough.
type Rule struct {
	// Everyone admits every caller with a token for the server.
	Everyone bool `json:"everyone,omitempty"`
	// Groups are values of the claim "groups".
	Groups []string `json:"groups,omitempty"`
	// Emails are addresses, or "*@DOMAIN". They count only if the issuer says that the
	// address is verified (email_verified). Upper and lower case are equal.
	Emails []string `json:"emails,omitempty"`
	// Claims maps names of claims to admitted values. A claim is a text or a list of
	// texts.
	Claims map[string][]string `json:"claims,omitempty"`
}

const (
	claimGroups   = "groups"
	claimEmail    = "email"
	claimVerified = "email_verified"
)

// check refuses rules that match no caller, because such a rule is an oversight.
func (r Rule) check() error {
	if !r.Everyone && len(r.Groups) == 0 && len(r.Emails) == 0 && len(r.Claims) == 0 {
		return errors.New(`it fits nobody; name groups, emails or claims, or set "everyone": true`)
	}
	for _, e := range r.Emails {
		local, domain, ok := address(e)
		if !ok || strings.Contains(domain, "*") || strings.Contains(local, "*") && local != "*" {
			return fmt.Errorf("%q is neither an e-mail address nor *@DOMAIN", e)
		}
	}
	for name, values := range r.Claims {
		if name == "" || len(values) == 0 || slices.Contains(values, "") {
			return fmt.Errorf("claim %q has no values, or an empty one", name)
		}
	}
	if slices.Contains(r.Groups, "") {
		return errors.New("a group has no name")
	}
	return nil
}

// needs lists the claims that a rule reads.
func (r Rule) needs() []string {
	names := []string{claimGroups, claimEmail, claimVerified}
	for name := range r.Claims {
		names = append(names, name)
	}
	return names
}

// fits reports whether a caller with these claims may use the server.
func (r Rule) fits(claims map[string]any) bool {
	if r.Everyone || shares(texts(claims[claimGroups]), r.Groups) {
		return true
	}
	email, _ := claims[claimEmail].(string)
	if verified(claims[claimVerified]) && slices.ContainsFunc(r.Emails, func(pattern string) bool { return matches(pattern, email) }) {
		return true
	}
	for name, values := range r.Claims {
		if shares(texts(claims[name]), values) {
			return true
		}
	}
	return false
}

// verified accepts the two forms that issuers write.
func verified(claim any) bool { return claim == true || claim == "true" }

// texts returns the values of a claim that is a text or a list of texts.
func texts(claim any) []string {
	switch claim := claim.(type) {
	case string:
		return []string{claim}
	case []any:
		var all []string
		for _, v := range claim {
			if text, ok := v.(string); ok {
				all = append(all, text)
			}
		}
		return all
	}
	return nil
}

func shares(has, wanted []string) bool {
	return slices.ContainsFunc(has, func(v string) bool { return slices.Contains(wanted, v) })
}

// matches compares an address with another one, or with "*@DOMAIN".
func matches(pattern, email string) bool {
	local, domain, ok := address(email)
	wanted, at, valid := address(pattern)
	return ok && valid && local != "*" && domain == at && (wanted == "*" || wanted == local)
}

// address splits an e-mail address and lowers its case. It refuses addresses with a
// quoted part, with characters beyond ASCII or with invisible characters, because they
// might look like another address.
func address(text string) (local, domain string, ok bool) {
	odd := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`"(),:;<>[\]`, c) }
	local, domain, ok = strings.Cut(strings.ToLower(text), "@")
	ok = ok && local != "" && domain != "" && !strings.Contains(domain, "@") && !strings.ContainsFunc(text, odd)
	return local, domain, ok
}
