package serversfile

import (
	"strconv"
	"strings"
)

// The functions of this file accept values in an odd form that can mean only one thing.

// scalar turns a number, true or false into a string, spelled as in the file. Any other value
// stays.
func scalar(n node) node {
	if n.shape == boolean {
		n.text = strconv.FormatBool(n.on)
	}
	if n.shape == boolean || n.shape == number {
		n.shape = text
	}
	return n
}

// path reads the path of a program, a file or a folder. ~ and $HOME at its beginning are the home
// folder, as for every shell.
func (r *serverReader) path(n node, field string) string {
	n, ok := r.fromHome(n, field)
	if !ok {
		return ""
	}
	return r.text(n, field)
}

// arg reads an argument, which may be a path; previous is the preceding argument. ~ or $HOME at the
// beginning is the home folder. Elsewhere, and in a script after -c, arg leaves them to the program.
func (r *serverReader) arg(n, previous node, field string) string {
	n = scalar(n)
	if flags, ok := strings.CutPrefix(previous.text, "-"); ok && strings.HasSuffix(flags, "c") && strings.Trim(flags, "cil") == "" { // as in python -c and bash -lc
		return r.text(n, field)
	}
	return r.path(n, field)
}

// fromHome replaces ~ or $HOME at the beginning of a text by ${HOME}. ok is false if the home folder is
// not known.
func (r *serverReader) fromHome(n node, field string) (_ node, ok bool) {
	for _, begin := range []string{"~", "$HOME"} {
		rest, ok := strings.CutPrefix(n.text, begin)
		if n.shape != text || !ok || rest != "" && rest[0] != '/' {
			continue
		}
		if home, _ := r.getenv("HOME"); home == "" {
			r.lacks(n.at, r.what+": "+field, "the home folder is not known, and a stack has none", "write a path of the machine or the image that runs the server, or ${HOME:-default}", nil)
			return n, false
		}
		n.text = "${HOME}" + rest
		break
	}
	return n, true
}
