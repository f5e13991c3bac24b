package serversfile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// reader turns a document into servers and collects its mistakes. It goes on after a
// mistake, so that one run shows all of them.
type reader struct {
	source   source
	folder   string // for relative paths, "" to leave them
	exposed  string // why others could change the file, "" if they cannot
	getenv   Getenv
	problems []remark
	warnings []remark
	ignored  []remark        // keys that have no effect
	envFiles []string        // that servers name as envFile
	access   node            // x-dormouse.access, with its variables expanded
	root     node            // the whole file
	byName   map[string]node // servers by name
	guests   bool            // servers without a profile become guests; see [Box.Guest]
	audit    Audit           // for servers without a setting of their own
}

func (r *reader) fail(at int, format string, args ...any) {
	r.problems = append(r.problems, remark{at: at, text: fmt.Sprintf(format, args...)})
}

func (r *reader) warn(at int, format string, args ...any) {
	r.warnings = append(r.warnings, remark{at: at, text: fmt.Sprintf(format, args...)})
}

// errors returns problems as errors with positions, in the order of the file.
func (r *reader) errors(problems []remark) (all []*Error) {
	for _, p := range inOrder(problems) {
		all = append(all, &Error{r.source.position(p.at), p.text, p.lacks})
	}
	return all
}

// joined returns errors as one, in the order of the file; nil for none.
func joined(all []*Error) error {
	slices.SortStableFunc(all, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var wrong []error
	for _, e := range all {
		wrong = append(wrong, e)
	}
	return errors.Join(wrong...)
}

// catalog reads the whole file into c.
func (r *reader) catalog(root node, c *File) {
	if ours, ok := root.get("x-dormouse"); ok && r.want(ours.value, object, "x-dormouse") {
		r.read(ours.value, section{name: "the file: x-dormouse", nulls: true, settings: r.fileSettings(c)})
	}
	if servers, ok := r.entries(root); ok {
		r.servers(servers, c)
		r.withoutRejected(c)
	}
}

// want complains unless n has the shape. The argument what is the name for n in the complaint.
func (r *reader) want(n node, s shape, what string) bool {
	if n.shape != s {
		r.fail(n.at, "%s must be %s, not %s", what, s, n.shape)
		return false
	}
	return true
}

// each calls the function use for the members of an object, in order. It complains about a repeated
// name, and leaves out all members with that name but the first.
func (r *reader) each(n node, use func(member)) {
	seen := map[string]int{}
	for _, m := range n.members {
		if first, twice := seen[m.name]; twice {
			r.fail(m.at, "duplicate key %q: it is already on line %d", m.name, r.source.position(first).Line)
			continue
		}
		seen[m.name] = m.at
		use(m)
	}
}

// plain appends a value as JSON. It complains about repeated names in an object, because
// it cannot tell which one the author meant.
func (r *reader) plain(to []byte, n node) []byte {
	scalar := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			panic("serversfile: " + err.Error()) // strings, and numbers as they stand in the file, always encode
		}
		return append(to, text...)
	}
	switch n.shape {
	case object:
		to = append(to, '{')
		r.each(n, func(m member) {
			if to[len(to)-1] != '{' {
				to = append(to, ',')
			}
			to = scalar(m.name)
			to = r.plain(append(to, ':'), m.value)
		})
		return append(to, '}')
	case array:
		to = append(to, '[')
		for i, item := range n.items {
			if i > 0 {
				to = append(to, ',')
			}
			to = r.plain(to, item)
		}
		return append(to, ']')
	case text:
		return scalar(n.text)
	case number:
		return append(to, n.text...)
	case boolean:
		return scalar(n.on)
	default:
		return append(to, "null"...)
	}
}

// filled returns a value with the variables in its texts expanded. A text with a variable
// that is not set stays as it is, because perhaps the section is not in use.
func (r *reader) filled(n node) node {
	if n.shape == text {
		if e := (variables{getenv: r.getenv}).expand(n.text); len(e.missing)+len(e.inputs)+len(e.editor) == 0 {
			n.text = e.text
		}
	}
	n.items, n.members = slices.Clone(n.items), slices.Clone(n.members)
	for i := range n.items {
		n.items[i] = r.filled(n.items[i])
	}
	for i := range n.members {
		n.members[i].value = r.filled(n.members[i].value)
	}
	return n
}

// servers reads all servers. It rejects servers with mistakes, and all servers of a repeated
// name, because it cannot tell which one the author meant.
func (r *reader) servers(all []member, c *File) {
	rejected := map[string]int{} // the index in c.rejected, by name
	first := map[string]int{}
	for _, m := range all {
		before := len(r.problems)
		if at, twice := first[m.name]; twice {
			r.fail(m.at, "duplicate key %q: it is already on line %d", m.name, r.source.position(at).Line)
		} else {
			first[m.name] = m.at
			r.one(m, c)
		}
		wrong := r.problems[before:]
		r.problems = r.problems[:before]
		if len(wrong) == 0 {
			continue
		}
		delete(c.servers, m.name)
		c.names = slices.DeleteFunc(c.names, func(name string) bool { return name == m.name })
		i, ok := rejected[m.name]
		if !ok {
			i = len(c.rejected)
			rejected[m.name] = i
			c.rejected = append(c.rejected, Rejection{Name: m.name})
		}
		c.rejected[i].Errors = append(c.rejected[i].Errors, r.errors(wrong)...)
	}
}

// one reads the server in m, complains about its mistakes, and adds it to c.
func (r *reader) one(m member, c *File) {
	switch {
	case m.name == "ping" || m.name == "sping" || m.name == "console": // paths of the gateway and of the console
		r.fail(m.at, "server name %q is reserved: choose another", m.name)
	case !validName(m.name):
		r.fail(m.at, "invalid server name %q: begin with a letter or digit, go on with letters, digits, dot, underscore or hyphen, 64 at most", m.name)
	}
	what := fmt.Sprintf("server %q", m.name)
	if !r.want(m.value, object, what) {
		return
	}
	r.rule(m.name)
	r.byName[m.name] = m.value
	c.names = append(c.names, m.name)
	c.servers[m.name] = (&serverReader{reader: r, what: what, key: m, elsewhere: map[string]string{}}).readServer()
}

// validName accepts names that need no escaping in a URL path, a DynamoDB key and an
// event stream.
func validName(s string) bool {
	for i, c := range []byte(s) {
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}
