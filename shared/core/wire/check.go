package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// maxDepth limits the nesting of a message. Real messages stay under 100. Most clients and
// servers parse by recursion, and deep nesting would crash some of them.
const maxDepth = 1000

// check reports, as an *Error with CodeParse, why raw is not one JSON value in UTF-8 (RFC 8259).
// All other functions of this package rely on check. It does the work of json.Valid, with a
// limit on depth, and is several times as fast on long strings.
func check(raw []byte) error {
	if !utf8.Valid(raw) {
		return &Error{Code: CodeParse, Message: "message is not valid UTF-8"}
	}
	c := checker{raw: raw}
	switch {
	case c.value() && c.token() == 0 && c.pos == len(raw):
		return nil
	case c.depth > maxDepth:
		return &Error{Code: CodeParse, Message: fmt.Sprintf("message is nested deeper than %d levels", maxDepth)}
	case c.pos >= len(raw):
		return &Error{Code: CodeParse, Message: fmt.Sprintf("message is not valid JSON: it ends after %d bytes", len(raw))}
	default:
		return &Error{Code: CodeParse, Message: fmt.Sprintf("message is not valid JSON at byte %d", c.pos)}
	}
}

// checker walks over JSON without recursion. Its methods return false at the first byte that is
// not JSON, and leave pos there.
type checker struct {
	raw   []byte
	pos   int
	depth int
	// Bit d%64 of arrays[d/64] is set when the container at depth d is an array.
	arrays [maxDepth/64 + 1]uint64
}

// value consumes one value, and the whitespace before it.
func (c *checker) value() bool {
	for {
		if !c.scalar() {
			return false
		}
		for c.closes() {
		}
		if c.depth == 0 {
			return true
		}
		if !c.take(',') || !c.inArray() && !c.key() {
			return false
		}
	}
}

// scalar opens containers down to the first scalar or the first empty container. It
// consumes a scalar. It leaves the bracket that ends an empty container to [checker.closes].
func (c *checker) scalar() bool {
	for {
		switch token := c.token(); token {
		case '{':
			if !c.open(false) {
				return false
			}
			if c.token() == '}' {
				return true
			}
			if !c.key() {
				return false
			}
		case '[':
			if !c.open(true) {
				return false
			}
			if c.token() == ']' {
				return true
			}
		case '"':
			return c.str()
		case 't':
			return c.literal("true")
		case 'f':
			return c.literal("false")
		case 'n':
			return c.literal("null")
		default:
			return c.number()
		}
	}
}

func (c *checker) open(array bool) bool {
	if c.depth++; c.depth > maxDepth {
		return false
	}
	c.pos++
	bit := uint64(1) << (c.depth % 64)
	if array {
		c.arrays[c.depth/64] |= bit
	} else {
		c.arrays[c.depth/64] &^= bit
	}
	return true
}

func (c *checker) inArray() bool {
	return c.arrays[c.depth/64]>>(c.depth%64)&1 == 1
}

// closes consumes the end of the innermost container if it is next.
func (c *checker) closes() bool {
	token := c.token()
	if c.depth == 0 || token != '}' && token != ']' || c.inArray() != (token == ']') {
		return false
	}
	c.pos++
	c.depth--
	return true
}

// key consumes a member's key with its colon.
func (c *checker) key() bool {
	return c.token() == '"' && c.str() && c.take(':')
}

// token skips whitespace and returns the byte after it, 0 at the end.
func (c *checker) token() byte {
	for c.pos < len(c.raw) {
		if b := c.raw[c.pos]; b > ' ' || !isSpace(b) {
			return b
		}
		c.pos++
	}
	return 0
}

func (c *checker) take(token byte) bool {
	if c.token() != token {
		return false
	}
	c.pos++
	return true
}

func (c *checker) literal(word string) bool {
	if !bytes.HasPrefix(c.raw[c.pos:], []byte(word)) {
		return false
	}
	c.pos += len(word)
	return true
}

func (c *checker) number() bool {
	if c.at('-') {
		c.pos++
	}
	if c.at('0') {
		c.pos++
	} else if !c.digits() {
		return false
	}
	if c.at('.') {
		if c.pos++; !c.digits() {
			return false
		}
	}
	if c.at('e') || c.at('E') {
		if c.pos++; c.at('+') || c.at('-') {
			c.pos++
		}
		return c.digits()
	}
	return true
}

func (c *checker) at(b byte) bool {
	return c.pos < len(c.raw) && c.raw[c.pos] == b
}

// digits consumes at least one digit.
func (c *checker) digits() bool {
	start := c.pos
	for c.pos < len(c.raw) && c.raw[c.pos] >= '0' && c.raw[c.pos] <= '9' {
		c.pos++
	}
	return c.pos > start
}

// str consumes a string. The caller knows already that raw is UTF-8.
func (c *checker) str() bool {
	for c.pos++; ; c.pos++ {
		c.plain()
		switch {
		case c.pos >= len(c.raw):
			return false
		case c.raw[c.pos] == '"':
			c.pos++
			return true
		case c.raw[c.pos] != '\\' || !c.escape():
			return false
		}
	}
}

// plain skips to the next quote, backslash or control byte, eight bytes at a time.
func (c *checker) plain() {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; len(c.raw)-c.pos >= 8; c.pos += 8 {
		w := binary.LittleEndian.Uint64(c.raw[c.pos:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// Subtracting borrows into the high bit of every byte that is zero after the xor,
		// or below a blank. The borrow can spoil bytes above it, never below, so the
		// lowest flag is right.
		special := ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w) & highs
		if special != 0 {
			c.pos += bits.TrailingZeros64(special) / 8
			return
		}
	}
	for c.pos < len(c.raw) {
		if b := c.raw[c.pos]; b == '"' || b == '\\' || b < ' ' {
			return
		}
		c.pos++
	}
}

// escape checks an escape sequence, and leaves pos at its last byte.
func (c *checker) escape() bool {
	if c.pos++; c.pos >= len(c.raw) {
		return false
	}
	switch c.raw[c.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for range 4 {
			if c.pos++; c.pos >= len(c.raw) || strings.IndexByte("0123456789abcdefABCDEF", c.raw[c.pos]) < 0 {
				return false
			}
		}
		return true
	default:
		return false
	}
}
