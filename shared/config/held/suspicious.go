package held

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode"
)

// span is a part of a text, in bytes.
type span struct{ from, to int }

// instructions match lower-case texts that speak to a model in place of its user. They are hints for
// people, and do not find every such text.
var instructions = sync.OnceValue(func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, expression := range []string{
		`<\s*/?\s*(important|system|instructions?|secret|hidden|admin|assistant|user|critical|note to|priority)[^<>]*>`,
		`\[\s*/?\s*(inst|system|important)\s*\]|<\|[a-z_]+\|>`,
		`\b(ignore|disregard|forget|override|bypass)\b.{0,40}\b(previous|prior|earlier|above|other|all|any|instructions?|rules|prompt|tools?)\b`,
		`\b(do not|don'?t|never|without)\b.{0,30}\b(tell|telling|mention|mentioning|inform|informing|reveal|show|notify|notifying|ask|asking|warn|disclose)\b`,
		`\b(before|after|when|whenever|prior to|instead of)\b.{0,20}\b(using|calling|invoking|running|you (use|call|invoke|run)|every|any)\b.{0,30}\b(tools?|this|calls?|function)\b`,
		`\b(you|assistant|agent|model|llm|ai)\b,? (must|should|shall|have to|need to|are required to|are now|always|will)\b`,
		`\b(always|first|must|instead)\b.{0,20}\b(call|use|invoke|read|send|include|pass|run|execute)\b`,
		`\b(system|developer) (prompt|message)\b|\bnew instructions?\b|\bas an ai\b|\byou are now\b`,
		`\b(read|open|cat|load|include|pass|send|attach|copy)\b.{0,40}(~/|/etc/|\.ssh|\.env\b|\.aws|id_rsa|mcp\.json|passwords?\b|credentials?\b|secrets?\b|tokens?\b|(api|private)[ _-]?keys?\b|conversation|chat history|contents? of)`,
		`\b(send|post|upload|forward|exfiltrate|bcc|report)\b.{0,60}(https?://|[a-z0-9._-]+@[a-z0-9-]+\.)`,
		`[a-z0-9+/]{80,}={0,2}`,
	} {
		all = append(all, regexp.MustCompile(`(?s)`+expression))
	}
	return all
})

// mostScanned is how much of a text is searched for instructions, in bytes. The rest of a longer
// text is suspicious in any case.
const mostScanned = 32 << 10

// suspicious returns the parts of a text that look like an instruction to a model, that hide
// characters, or that mix alphabets within a word.
func suspicious(text string) (spans []span) {
	// plain is what a model may read, in lower case. It has letters in place of fullwidth characters
	// and of tag characters of Unicode, and no invisible characters.
	var plain strings.Builder
	var at []span // for each byte of plain, the part of text that it comes from
	before := rune(0)
	for i, r := range text {
		size := len(string(r))
		if r == unicode.ReplacementChar {
			size = 1
		}
		here := span{i, min(i+size, len(text))}
		emoji := r == 0xFE0F && unicode.IsSymbol(before) // this selector only makes the symbol before it an emoji
		if before = r; Hidden(r) && !emoji {
			spans = append(spans, here)
		}
		switch {
		case 0xE0020 <= r && r <= 0xE007E:
			r -= 0xE0000
		case '！' <= r && r <= '～':
			r -= '！' - '!'
		case Hidden(r):
			continue
		case unicode.IsSpace(r):
			r = ' '
		}
		n := plain.Len()
		plain.WriteRune(unicode.ToLower(r))
		for range plain.Len() - n {
			at = append(at, here)
		}
	}
	if len(at) > mostScanned {
		spans = append(spans, span{at[mostScanned].from, len(text)}) // people do not read that far, so the rest may hide something
	}
	if len(at) < 4 {
		return append(spans, mixed(text)...)
	}
	for _, e := range instructions() {
		for _, m := range e.FindAllStringIndex(plain.String()[:min(plain.Len(), mostScanned)], -1) {
			spans = append(spans, span{at[m[0]].from, at[m[1]-1].to})
		}
	}
	return append(spans, mixed(text)...)
}

// mixed returns the words that mix letters of alphabets that look alike.
func mixed(text string) (spans []span) {
	start, latin, other := -1, false, false
	end := func(i int) {
		if latin && other {
			spans = append(spans, span{start, i})
		}
		start, latin, other = -1, false, false
	}
	for i, r := range text {
		if !unicode.IsLetter(r) {
			end(i)
			continue
		}
		if start < 0 {
			start = i
		}
		latin = latin || unicode.Is(unicode.Latin, r)
		other = other || unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Cherokee, unicode.Armenian)
	}
	end(len(text))
	return spans
}

// Hidden reports whether people do not see a character, or see others in another order because
// of it.
func Hidden(r rune) bool {
	switch {
	case r == '\n' || r == '\t' || r == '\r':
		return false
	case r == 0x034F, r == 0x115F, r == 0x1160, r == 0x17B4, r == 0x17B5, r == 0x3164, r == 0xFFA0, r == 0x2800:
		return true // letters and marks that are displayed as nothing
	case unicode.Is(unicode.Variation_Selector, r), unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
		return true
	default:
		return unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) || r == unicode.ReplacementChar
	}
}

// Visible returns a text in which hidden characters are written out, as in ⟨U+200B⟩. The result
// cannot control a terminal that prints it.
func Visible(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return Hidden(r) || r == '\r' }) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if Hidden(r) || r == '\r' {
			fmt.Fprintf(&out, "⟨U+%04X⟩", r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}
