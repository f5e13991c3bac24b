package display

import (
	"slices"
	"strings"
	"unicode"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// plain replaces each character of a text that could control the terminal by a space. The servers
// file may be of another author, and an event may quote what others have sent.
func plain(text string) string {
	return strings.Map(func(r rune) rune { // strings.Map returns the same string if nothing changes
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

func allPlain(texts []string) []string {
	texts = slices.Clone(texts)
	for i := range texts {
		texts[i] = plain(texts[i])
	}
	return texts
}

// plainEvent returns an event with plain texts.
func plainEvent(e journal.Event) journal.Event {
	for _, text := range []*string{&e.Name, &e.Detail, &e.Reason, &e.Hint} {
		*text = plain(*text)
	}
	e.Lines = allPlain(e.Lines)
	return e
}

// plain returns s with plain texts.
func (s Start) plain() Start {
	s.File, s.Notes, s.Servers = plain(s.File), allPlain(s.Notes), slices.Clone(s.Servers)
	for i := range s.Servers {
		for _, text := range []*string{&s.Servers[i].Name, &s.Servers[i].Why, &s.Servers[i].Place} {
			*text = plain(*text)
		}
	}
	return s
}
