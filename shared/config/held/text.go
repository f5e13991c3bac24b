package held

import (
	"strings"
	"unicode/utf8"
)

const (
	around = 40  // characters of equal text that are printed on each side of a difference
	mostOf = 600 // characters of one word that are printed
)

// Lines returns a change as text: what happened to the tool, and below it a line for each
// member that differs, with [-what is gone-] and {+what is new+}. What looks like an
// instruction to a model, or hides text, has a line of its own. Characters that nobody would
// see, or that a terminal would obey, are written out; see [Visible].
func (c Change) Lines() []string {
	lines := []string{c.Kind + "  " + oneLine(c.Name)}
	for _, p := range c.Parts {
		if c.Kind == New && p.Path == "name" {
			continue
		}
		var text strings.Builder
		pieces := unmarked(p.Words)
		for i, w := range pieces {
			said := oneLine(w.Text)
			switch w.Op {
			case "+":
				text.WriteString("{+" + cut(said, mostOf, 0) + "+}")
			case "-":
				text.WriteString("[-" + cut(said, mostOf, 0) + "-]")
			default:
				before, after := around, around
				if i == 0 {
					before = 0
				}
				if i == len(pieces)-1 {
					after = 0
				}
				text.WriteString(cut(said, before, after))
			}
		}
		lines = append(lines, "    "+oneLine(p.Path)+": "+text.String())
		for _, w := range p.Words {
			if w.Marked {
				lines = append(lines, "    ⚠ this may be an instruction to a model, or hide text: "+cut(oneLine(w.Text), mostOf, 0))
			}
		}
		if len(suspicious(p.Path)) > 0 {
			lines = append(lines, "    ⚠ this may be an instruction to a model, or hide text: "+cut(oneLine(p.Path), mostOf, 0))
		}
	}
	return lines
}

// unmarked joins neighbouring words with the same Op, and leaves out Marked.
func unmarked(words []Word) (pieces []Word) {
	for _, w := range words {
		if n := len(pieces) - 1; n >= 0 && pieces[n].Op == w.Op {
			pieces[n].Text += w.Text
		} else {
			pieces = append(pieces, Word{Text: w.Text, Op: w.Op})
		}
	}
	return pieces
}

// oneLine returns a text without line breaks, as a terminal may print it.
func oneLine(text string) string {
	return strings.NewReplacer("\n", "⏎", "\t", " ").Replace(Visible(text))
}

// cut replaces the middle of a long text by …. The arguments start and end are how many characters
// stay before and after it.
func cut(text string, start, end int) string {
	n := utf8.RuneCountInString(text)
	if n <= start+end+1 {
		return text
	}
	runes := []rune(text)
	return string(runes[:start]) + "…" + string(runes[n-end:])
}
