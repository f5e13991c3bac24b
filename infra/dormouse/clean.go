package dormouse

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"

	"golang.org/x/term"
)

// cleaned is a Writer to a terminal. Write removes characters that could control the terminal,
// because most of the output comes from others, such as callers and servers.
type cleaned struct {
	to     *os.File
	colors bool // escape sequences that set colors (SGR) may pass
}

// onTerminal returns f, or if f is a terminal, a [cleaned] Writer to it.
func onTerminal(f *os.File) io.Writer {
	if !term.IsTerminal(int(f.Fd())) {
		return f
	}
	return cleaned{to: f}
}

// raw returns the Writer below a cleaned. It is for control sequences that Dormouse itself sends.
func raw(out io.Writer) io.Writer {
	if c, ok := out.(cleaned); ok {
		return c.to
	}
	return out
}

// colored returns a Writer that lets colors pass to a terminal. It is for the output of programs.
func colored(out io.Writer) io.Writer {
	if c, ok := out.(cleaned); ok {
		return cleaned{c.to, true}
	}
	return out
}

// sgr matches an escape sequence that sets colors (ECMA-48, Select Graphic Rendition).
var sgr = regexp.MustCompile(`^\x1b\[[0-9;:]*m`)

// Write implements io.Writer. It resets colors at the end of text.
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

// inCell returns arg, an argument for fmt, in a form that fits into a cell: a text becomes one line.
func inCell(arg any) any {
	switch v := arg.(type) {
	case error:
		return wire.OneLine(v.Error())
	case fmt.Stringer:
		return arg // Stringers are our own types, whose texts are safe
	}
	if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
		return wire.OneLine(v.String())
	}
	return arg
}

// escaped escapes all unprintable characters in JSON, so that it cannot control a terminal.
// encoding/json escapes ASCII control characters only.
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
