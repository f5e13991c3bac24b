package display

import (
	"slices"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// allPlain returns a copy of texts without characters that could control the terminal. The servers file
// may be of another author, and an event may quote what others have sent.
func allPlain(texts []string) []string {
	texts = slices.Clone(texts)
	for i := range texts {
		texts[i] = wire.OneLine(texts[i])
	}
	return texts
}

// plainEvent returns an event with plain texts.
func plainEvent(e journal.Event) journal.Event {
	for _, text := range []*string{&e.Name, &e.Detail, &e.Reason, &e.Hint} {
		*text = wire.OneLine(*text)
	}
	e.Lines = allPlain(e.Lines)
	return e
}

// plain returns s with plain texts.
func (s Start) plain() Start {
	s.File, s.Notes, s.Servers = wire.OneLine(s.File), allPlain(s.Notes), slices.Clone(s.Servers)
	for i := range s.Servers {
		for _, text := range []*string{&s.Servers[i].Name, &s.Servers[i].Why, &s.Servers[i].Place} {
			*text = wire.OneLine(*text)
		}
	}
	return s
}
