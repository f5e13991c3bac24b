package group

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// separator stands between the word for a member and the member's own name for a tool.
const separator = "__"

// Clients, and the models behind them, take names of at most 64 characters out of letters, digits, "_"
// and "-". A tool whose name in the group would not be of this form gets a short name: the beginning of
// the name, "--", and a hash of the whole name.
const (
	maxName = 64
	maxWord = 30 // the longest result of wordOf
	mark    = "--"
	hashLen = 8
)

// Names translates between names of tools and prompts at the members and in the group. It is immutable.
type Names struct {
	words []word
}

type word struct{ text, member string }

// NewNames takes the names of a group's members, in any order.
func NewNames(members []string) *Names {
	n := &Names{}
	for _, m := range members {
		n.words = append(n.words, word{wordOf(m), m})
	}
	return n
}

// wordOf returns the word with which the names of a member's tools and prompts begin in the group.
// The word must depend only on the name of the member, so that names stay the same when other
// servers come and go.
func wordOf(member string) string {
	if len(member) <= maxWord && clean(member) == member {
		return member
	}
	text := clean(member)
	return text[:min(len(text), maxWord-5)] + "_" + hash(member)[:4]
}

// Join returns the name in the group for a tool or prompt that the member calls name.
func (n *Names) Join(member, name string) string {
	begin := wordOf(member) + separator
	whole := begin + name
	if of, rest, ok := n.Split(whole); ok && of == member && rest == name && len(whole) <= maxName && clean(whole) == whole && !Short(whole) {
		return whole
	}
	text := begin + clean(name)
	return text[:min(len(text), maxName-len(mark)-hashLen)] + mark + hash(member + "\x00" + name)[:hashLen]
}

// Split returns the member that a name in the group belongs to, and the member's own name for it. If the
// name is [Short], rest is not the member's own name, which only the member's list can tell.
func (n *Names) Split(name string) (member, rest string, ok bool) {
	longest := -1
	for _, w := range n.words { // with members "a" and "a__b", the name "a__b__c" belongs to "a__b"
		if own, fits := strings.CutPrefix(name, w.text+separator); fits && len(w.text) > longest {
			member, rest, ok, longest = w.member, own, true, len(w.text)
		}
	}
	return member, rest, ok
}

// Begin returns what stands before the separator in a name, "" if the name has none.
func (n *Names) Begin(name string) string {
	begin, _, ok := strings.Cut(name, separator)
	if !ok {
		return ""
	}
	return begin
}

// Short reports whether a name may be one that [Names.Join] has shortened.
func Short(name string) bool {
	at := len(name) - hashLen - len(mark)
	return at > 0 && name[at:at+len(mark)] == mark && strings.Trim(name[at+len(mark):], "0123456789abcdef") == ""
}

// clean replaces the characters that clients do not take in names.
func clean(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			return c
		default:
			return '_'
		}
	}, name)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// scheme begins the URIs of resources in a group.
const scheme = "dormouse://"

// keptScheme returns the scheme of a URI that the URI keeps in a group, "" for none. Clients recognize
// pages of MCP Apps and files of skills by their scheme.
func keptScheme(uri string) string {
	for _, kept := range []string{appScheme, "skill://"} {
		if strings.HasPrefix(uri, kept) {
			return kept
		}
	}
	return ""
}

// appScheme begins the URIs of the pages of MCP Apps.
const appScheme = "ui://"

// WrapURI returns the URI in the group for a member's URI, or for its URI template. The result ends
// with the member's own URI, so that expanding a template in the group gives a URI of the group:
// file:///a of the member "app" is dormouse://app/file:///a. A URI with a keptScheme gets the
// member after the scheme: ui://widget/a.html of the member "app" is ui://app/widget/a.html.
func WrapURI(member, uri string) string {
	if kept := keptScheme(uri); kept != "" {
		return kept + member + "/" + uri[len(kept):]
	}
	return scheme + member + "/" + uri
}

// UnwrapURI undoes [WrapURI].
func UnwrapURI(uri string) (member, own string, ok bool) {
	if kept := keptScheme(uri); kept != "" {
		member, own, ok = strings.Cut(uri[len(kept):], "/")
		return member, kept + own, ok
	}
	rest, ok := strings.CutPrefix(uri, scheme)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}

func (n *Names) has(member string) bool {
	return slices.ContainsFunc(n.words, func(w word) bool { return w.member == member })
}
