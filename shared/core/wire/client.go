package wire

import (
	"strings"
	"unicode"
)

// maxClientName bounds the result of [ClientName], in characters.
const maxClientName = 64

// ClientName returns the name that a client gives itself in the params of initialize, for
// logs and people: on one line, short, and without characters that control a terminal. It
// returns "" if the client gives none.
func ClientName(initialize []byte) string {
	name, _ := String(Lookup(initialize, "clientInfo", "name"))
	name = name[:min(len(name), 4*maxClientName)]
	name = strings.TrimSpace(OneLine(name))
	if runes := []rune(name); len(runes) > maxClientName {
		return string(runes[:maxClientName-1]) + "…"
	}
	return name
}

// OneLine replaces each character of a text that could control a terminal, such as a line break, by a
// space. The text may come from anybody.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}
