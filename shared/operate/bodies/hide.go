package bodies

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// hidden stands in the place of a secret.
const hidden = "***"

// maxDepth limits how deep a text within a text, in JSON or base64, is decoded.
const maxDepth = 8

// hider hides secrets in the texts of a JSON value. It finds secrets that are written with
// escapes, in JSON inside of a text, or in base64, too.
type hider struct {
	hide  func(string) string // replaces secrets in a text
	names []string            // of members of JSON objects, whose values are hidden

	found bool // a secret was found
	depth int  // how often the text was decoded
}

// body returns what is kept of raw. The argument name says whether raw is the arguments or the result of
// a call. body adds to *left what is not kept, and why.
func (h hider) body(name string, raw json.RawMessage, left *string) json.RawMessage {
	say := func(format string, args ...any) {
		if *left != "" {
			*left += "; "
		}
		*left += name + ": " + fmt.Sprintf(format, args...)
	}
	if len(raw) == 0 {
		return nil
	}
	if len(raw) > maxRead {
		say("%d bytes are too many", len(raw))
		return nil
	}
	out, err := h.json(raw)
	if err != nil {
		say("it is not JSON")
		return nil
	}
	if len(out) > MaxBody {
		say("all but the beginning of %d bytes", len(out))
		for n := MaxBody; ; n -= n / 4 {
			if begin := quoted(strings.ToValidUTF8(string(out[:n]), "")); len(begin) <= MaxBody {
				return begin
			}
		}
	}
	return out
}

func quoted(text string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a text always encodes
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// json returns a JSON value without secrets. Members stay in order, also repeated ones.
func (h *hider) json(raw []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out bytes.Buffer
	if err := h.copy(d, &out); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one value")
	}
	return out.Bytes(), nil
}

func (h *hider) copy(d *json.Decoder, out *bytes.Buffer) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch v := token.(type) {
	case json.Delim:
		out.WriteRune(rune(v))
		for first := true; d.More(); first = false {
			if !first {
				out.WriteByte(',')
			}
			if v == '{' {
				name, err := d.Token()
				if err != nil {
					return err
				}
				text, _ := name.(string)
				out.Write(quoted(h.text(text)))
				out.WriteByte(':')
				if slices.ContainsFunc(h.names, func(of string) bool { return strings.EqualFold(of, text) }) {
					var value json.RawMessage
					if err := d.Decode(&value); err != nil {
						return err
					}
					h.found = true
					out.WriteString(`"` + hidden + `"`)
					continue
				}
			}
			if err := h.copy(d, out); err != nil {
				return err
			}
		}
		end, err := d.Token()
		if of, ok := end.(json.Delim); ok {
			out.WriteRune(rune(of))
		}
		return err
	case string:
		out.Write(quoted(h.text(v)))
	case json.Number:
		if text := h.plain(v.String()); text != v.String() {
			out.Write(quoted(text))
		} else {
			out.WriteString(text)
		}
	default: // true, false and null
		text, err := json.Marshal(v)
		out.Write(text)
		return err
	}
	return nil
}

// plain hides secrets in a text that it does not decode.
func (h *hider) plain(text string) string {
	out := h.hide(text)
	h.found = h.found || out != text
	return out
}

// text hides secrets in a text. A text that is JSON keeps all but the secret. A text that has a
// secret in base64 or in escapes is hidden whole.
func (h *hider) text(text string) string {
	if h.depth < maxDepth {
		inner := *h
		inner.depth++
		if trim := strings.TrimSpace(text); len(trim) > 1 && (trim[0] == '{' || trim[0] == '[' || trim[0] == '"') {
			inner.found = false
			if out, err := inner.json([]byte(trim)); err == nil && inner.found {
				h.found = true
				text = string(out)
			}
		}
		inner.found = false
		if plain := unescaped(text); plain != text {
			if inner.text(plain); inner.found {
				h.found = true
				return hidden
			}
		}
		if plain, ok := decoded(text); ok {
			if inner.text(plain); inner.found {
				h.found = true
				return hidden
			}
		}
	}
	return h.plain(text)
}

var escape = regexp.MustCompile(`\\u[0-9A-Fa-f]{4}|\\/`)

// unescaped returns a text with the JSON escapes \uXXXX and \/ replaced by their characters.
func unescaped(text string) string {
	return escape.ReplaceAllStringFunc(text, func(of string) string {
		if of == `\/` {
			return "/"
		}
		code, _ := strconv.ParseUint(of[2:], 16, 32) // the expression matches only hexadecimal digits
		return string(rune(code))
	})
}

// minCode is the shortest text, in bytes, that is decoded as base64.
const minCode = 8

// decoded decodes base64, in the standard or the URL alphabet, with or without padding and line breaks.
func decoded(text string) (plain string, ok bool) {
	code := strings.Map(func(c rune) rune {
		switch c {
		case ' ', '\t', '\r', '\n', '=':
			return -1
		case '-':
			return '+'
		case '_':
			return '/'
		}
		return c
	}, text)
	if len(code) < minCode {
		return "", false
	}
	data, err := base64.RawStdEncoding.DecodeString(code)
	return string(data), err == nil
}
