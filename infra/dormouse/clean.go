package dormouse

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// cleaned is a terminal that commands print to. Most of what they print was written by
// others: callers, servers, files to import. So nothing reaches it that could control it.
type cleaned struct {
	to     *os.File
	colors bool // sequences that set colors (SGR) may pass
}

// onTerminal returns a writer to a file, which is cleaned if the file is a terminal.
func onTerminal(f *os.File) io.Writer {
	if !term.IsTerminal(int(f.Fd())) {
		return f
	}
	return cleaned{to: f}
}

// raw returns the writer that a cleaned one writes to. It is for what Dormouse itself wants
// to tell the terminal.
func raw(out io.Writer) io.Writer {
	if c, ok := out.(cleaned); ok {
		return c.to
	}
	return out
}

// colored returns a writer for the output of programs, whose colors a terminal shows.
func colored(out io.Writer) io.Writer {
	if c, ok := out.(cleaned); ok {
		return cleaned{c.to, true}
	}
	return out
}

// sgr fits a sequence that sets colors, and nothing else (ECMA-48, Select Graphic Rendition).
var sgr = regexp.MustCompile(`^\x1b\[[0-9;:]*m`)

// Write implements io.Writer. Colors end with the text that set them.
func (c cleaned) Write(text []byte) (int, error) {
	var out bytes.Buffer
	tinted := false
	for rest := text; len(rest) > 0; {
		if set := sgr.Find(rest); c.colors && set != nil {
			out.Write(set)
			rest, tinted = rest[len(set):], true
			continue
		}
		r, size := utf8.DecodeRune(rest)
		rest = rest[size:]
		switch {
		case r == '\r' && bytes.HasPrefix(rest, []byte("\n")):
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			out.WriteRune(r)
		default:
			out.WriteByte(' ')
		}
	}
	if tinted {
		out.WriteString("\x1b[0m")
	}
	if _, err := c.to.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// oneLine returns a text without characters that are not shown as themselves, as a cell of
// a table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// inCell returns an argument of a format with its texts on one line.
func inCell(arg any) any {
	switch v := arg.(type) {
	case error:
		return oneLine(v.Error())
	case fmt.Stringer:
		return arg // a Stringer is of our own types, whose texts are harmless
	}
	if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
		return oneLine(v.String())
	}
	return arg
}

// escaped returns JSON in which no character controls a terminal: encoding/json escapes
// those of ASCII only.
func escaped(text []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes()
}
