// Package policy decides who may use a server, and which of its tools, by the claims of the caller.
package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Rules are the rules of the servers file: the section access.allow. The keys are names of
// servers; "*" stands for all servers that have no entry.
type Rules map[string]Rule

// EveryServer is the key of the rule for servers that have no entry.
const EveryServer = "*"

// Of returns the rule for a server. If ok is false, nobody may use the server.
func (r Rules) Of(server string) (rule Rule, ok bool) {
	if rule, ok = r[server]; !ok {
		rule, ok = r[EveryServer]
	}
	return rule, ok
}

// Rule says which callers may use a server. A caller that fits one of Everyone, Groups, Emails and
// Claims may use it.
type Rule struct {
	// Everyone admits every caller that has a token for the server.
	Everyone bool `json:"everyone,omitempty"`
	// Groups are values of the claim "groups".
	Groups []string `json:"groups,omitempty"`
	// Emails are addresses, or "*@DOMAIN". An address counts only if the issuer says that it is
	// verified (email_verified). The case of letters does not matter.
	Emails []string `json:"emails,omitempty"`
	// Claims maps names of claims to admitted values. A claim is a text or a list of
	// texts.
	Claims map[string][]string `json:"claims,omitempty"`
	// Tools limits who may see and call tools, among the callers that may use the server. A key is the
	// name of a tool, or the beginning of names with "*" after it. For each tool the longest matching
	// key counts; a whole name counts before a beginning. A tool that no key matches has no limit. The
	// rules in Tools have no Tools of their own.
	Tools map[string]Rule `json:"tools,omitempty"`
}

// Bounds of Rule.Tools. The token of a caller contains the keys whose rules the caller fits.
const (
	maxTools = 32  // how many keys
	maxKeys  = 512 // bytes of the keys together
)

const (
	claimGroups   = "groups"
	claimEmail    = "email"
	claimVerified = "email_verified"
)

// Check refuses a rule that matches no caller, because its author has probably forgotten
// something. It also refuses a rule with malformed addresses or tools.
func (r Rule) Check() error {
	if err := r.check(); err != nil {
		return err
	}
	size := 0
	for _, tool := range slices.Sorted(maps.Keys(r.Tools)) {
		size += len(tool)
		if err := checkTool(tool, r.Tools[tool]); err != nil {
			return err
		}
	}
	if len(r.Tools) > maxTools || size > maxKeys {
		return fmt.Errorf("tools has %d names of %d bytes; want at most %d names, of %d bytes together: write beginnings with * behind them", len(r.Tools), size, maxTools, maxKeys)
	}
	return nil
}

func checkTool(tool string, r Rule) error {
	if tool == "" || strings.Contains(strings.TrimSuffix(tool, "*"), "*") {
		return fmt.Errorf("tools: %q is neither a tool nor a beginning with * behind it", tool)
	}
	if r.Tools != nil {
		return fmt.Errorf("tools: %q has tools of its own; leave them out", tool)
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("tools: %q: %w", tool, err)
	}
	return nil
}

func (r Rule) check() error {
	if !r.Everyone && len(r.Groups) == 0 && len(r.Emails) == 0 && len(r.Claims) == 0 {
		return errors.New(`it matches nobody; name groups, emails or claims, or set "everyone": true`)
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

// Fits reports whether a caller with these claims may use the server.
func (r Rule) Fits(claims map[string]any) bool {
	if r.Everyone || shares(Texts(claims[claimGroups]), r.Groups) {
		return true
	}
	email, _ := claims[claimEmail].(string)
	if verified(claims[claimVerified]) && slices.ContainsFunc(r.Emails, func(pattern string) bool { return matches(pattern, email) }) {
		return true
	}
	for name, values := range r.Claims {
		if shares(Texts(claims[name]), values) {
			return true
		}
	}
	return false
}

// verified accepts the two forms that issuers write.
func verified(claim any) bool { return claim == true || claim == "true" }

// Texts returns the values of a claim that is a text or a list of texts.
func Texts(claim any) []string {
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

// matches reports whether email fits pattern: another address, or "*@DOMAIN". Case does not count.
func matches(pattern, email string) bool {
	local, domain, ok := address(email)
	wanted, at, valid := address(pattern)
	return ok && valid && local != "*" && domain == at && (wanted == "*" || wanted == local)
}

// address splits an e-mail address and lowers its case. It refuses three kinds of
// addresses that might look like another one: those with a quoted part, with characters
// beyond ASCII or with invisible characters.
func address(text string) (local, domain string, ok bool) {
	odd := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`"(),:;<>[\]`, c) }
	local, domain, ok = strings.Cut(strings.ToLower(text), "@")
	ok = ok && local != "" && domain != "" && !strings.Contains(domain, "@") && !strings.ContainsFunc(text, odd)
	return local, domain, ok
}

// ToolsOf returns, sorted, the keys of Tools whose rules admit a caller with these claims.
func (r Rule) ToolsOf(claims map[string]any) (fits []string) {
	for _, tool := range slices.Sorted(maps.Keys(r.Tools)) {
		if r.Tools[tool].Fits(claims) {
			fits = append(fits, tool)
		}
	}
	return fits
}

func (r Rule) parts() []Rule { return slices.AppendSeq([]Rule{r}, maps.Values(r.Tools)) }

// Relevant returns the claims that the rules read, without values that no rule names.
func (r Rules) Relevant(claims map[string]any) map[string]any {
	kept := map[string]any{}
	for _, rule := range r {
		for _, part := range rule.parts() {
			part.relevant(claims, kept)
		}
	}
	return kept
}

func (r Rule) relevant(claims, kept map[string]any) {
	if _, ok := claims[claimEmail]; ok && len(r.Emails) > 0 {
		kept[claimEmail], kept[claimVerified] = claims[claimEmail], verified(claims[claimVerified])
	}
	for name, wanted := range r.values() {
		for _, v := range Texts(claims[name]) {
			have := Texts(kept[name])
			if slices.Contains(wanted, v) && !slices.Contains(have, v) {
				kept[name] = anys(append(have, v))
			}
		}
	}
}

// Claims returns the names of the claims that the rules read, sorted. email_verified, which is
// read beside email, is not among them.
func (r Rules) Claims() []string {
	names := map[string]bool{}
	for _, rule := range r {
		for _, part := range rule.parts() {
			for name, values := range part.values() {
				names[name] = names[name] || len(values) > 0
			}
			names[claimEmail] = names[claimEmail] || len(part.Emails) > 0
		}
	}
	maps.DeleteFunc(names, func(_ string, read bool) bool { return !read })
	return slices.Sorted(maps.Keys(names))
}

// values returns the values that a rule admits, by claim.
func (r Rule) values() map[string][]string {
	all := map[string][]string{claimGroups: r.Groups}
	for name, values := range r.Claims {
		all[name] = append(slices.Clone(all[name]), values...)
	}
	return all
}

func anys(texts []string) []any {
	all := make([]any, len(texts))
	for i, t := range texts {
		all[i] = t
	}
	return all
}
