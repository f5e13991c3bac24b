package catalog

import "bytes"

// plain takes out of a document what editors allow in JSON (JSONC): comments, and a
// comma behind the last element. It puts spaces in their place, so that every offset
// stays.
func (s source) plain() ([]byte, *remark) {
	out := bytes.Clone(s.data)
	comma := -1   // of a comma behind an element, with nothing but space since
	var last byte // the last byte that is neither space nor comment
	for i := 0; i < len(out); {
		rest := out[i:]
		switch {
		case rest[0] == '"':
			i += stringLength(rest)
			comma, last = -1, '"'
			continue
		case bytes.HasPrefix(rest, []byte("//")):
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			blank(rest[:end])
		case bytes.HasPrefix(rest, []byte("/*")):
			end := bytes.Index(rest[2:], []byte("*/"))
			if end < 0 {
				return nil, &remark{i, "the comment has no end: write */ behind it"}
			}
			blank(rest[:2+end+2])
		case rest[0] == ',' && last != ',' && last != '[' && last != '{' && last != ':' && last != 0:
			comma, last = i, ','
		case (rest[0] == '}' || rest[0] == ']') && comma >= 0:
			out[comma] = ' '
			comma, last = -1, rest[0]
		case bytes.IndexByte([]byte(" \t\r\n"), rest[0]) < 0:
			comma, last = -1, rest[0]
		}
		i++
	}
	return out, nil
}

// stringLength is how many bytes a string has with its quotes, all of them if it does
// not end.
func stringLength(from []byte) int {
	for i := 1; i < len(from); i++ {
		switch from[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(from)
}

// blank overwrites a comment, but for the ends of lines.
func blank(comment []byte) {
	for i, c := range comment {
		if c != '\n' && c != '\r' {
			comment[i] = ' '
		}
	}
}
