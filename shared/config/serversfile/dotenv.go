package serversfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A file of variables has a line NAME=VALUE for each variable, as .env files have. The
// parser skips "export " before the name, empty lines and lines that begin with #. A value
// without quotes ends at a # after a space. A value in single quotes is taken as it is. A
// value in double quotes may have \n, \r, \t, \", \\ and \$. Quoted values may span lines.
// The parser expands no variables in values, because a secret may hold a $.
//
// Two libraries for such files were rejected. joho/godotenv and its forks replace $WORD in
// a value, so a password changes in silence, and their errors quote the file.
// hashicorp/go-envparse takes the quotes out of an unquoted JSON value, and cuts it at any
// #.

// envProblem is a line of a file of variables that cannot be read. It does not quote the line.
type envProblem struct {
	line int
	text string
}

// ParseEnv reads the content of a file of variables and leaves out lines that cannot be
// read. Of a repeated name it takes the last value.
func ParseEnv(data []byte) map[string]string {
	all, _ := parseEnv(data)
	return all
}

// SetEnv sets a variable in the content of a file of variables. The argument line, of the form
// NAME=VALUE, replaces the last line that sets NAME, or is added at the end. If there are such lines,
// SetEnv removes the others, a byte order mark, and carriage returns at ends of lines. If line is only
// NAME, SetEnv removes the variable.
func SetEnv(data []byte, line string) []byte {
	name, _, sets := strings.Cut(line, "=")
	text, found, _ := readVariables(data)
	var out strings.Builder
	at, put := 0, -1
	for i, v := range found {
		if v.name == name {
			put = i
		}
	}
	for i, v := range found {
		if v.name != name {
			continue
		}
		out.WriteString(text[at:v.begin])
		if at = v.end; i == put && sets {
			out.WriteString(line + "\n")
		}
	}
	out.WriteString(text[at:])
	switch {
	case put >= 0:
		return []byte(out.String())
	case !sets:
		return data
	case len(data) > 0 && !bytes.HasSuffix(data, []byte("\n")):
		line = "\n" + line
	}
	return slices.Concat(data, []byte(line+"\n"))
}

func parseEnv(data []byte) (map[string]string, []envProblem) {
	_, found, problems := readVariables(data)
	all := map[string]string{}
	for _, v := range found {
		all[v.name] = v.value
	}
	return all, problems
}

// assignment is a variable in the content of a file of variables.
type assignment struct {
	name, value string
	begin, end  int // byte offsets of its lines
}

// readVariables returns the assignments in data, in order, and the text to which their begin and end
// refer.
func readVariables(data []byte) (text string, found []assignment, problems []envProblem) {
	whole := strings.ReplaceAll(string(bytes.TrimPrefix(data, []byte("\ufeff"))), "\r\n", "\n")
	rest := whole
	for line := 1; rest != ""; {
		place := len(whole) - len(rest)
		text, after, _ := strings.Cut(rest, "\n")
		rest = after
		begins := line
		line++
		text = strings.TrimLeftFunc(text, unicode.IsSpace) // space at the end may be in quotes
		if text == "" || text[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(text, "=")
		name = strings.TrimSpace(strings.TrimPrefix(name, "export "))
		value = strings.TrimLeftFunc(value, unicode.IsSpace)
		wrong := ""
		switch {
		case !ok:
			wrong = "a line must be NAME=VALUE"
		case name == "" || strings.ContainsAny(name, " \t\"'"):
			wrong = "no name of a variable stands before ="
		case value != "" && (value[0] == '"' || value[0] == '\''):
			var inside, behind string
			if after != "" {
				after = "\n" + after
			}
			if inside, behind, ok = unquote(value + after); !ok {
				wrong = "the quote has no end: quote a value that holds a quote, too"
				break
			}
			tail, left, _ := strings.Cut(behind, "\n")
			line += strings.Count((value + after)[:len(value+after)-len(behind)], "\n")
			rest = left
			if tail = strings.TrimSpace(tail); tail != "" && tail[0] != '#' {
				wrong = "text stands behind the quotes"
			}
			value = inside
		default:
			for _, comment := range []string{" #", "\t#"} {
				value, _, _ = strings.Cut(value, comment)
			}
			if strings.HasPrefix(value, "#") {
				value = ""
			}
			value = strings.TrimSpace(value)
		}
		if wrong == "" && (!utf8.ValidString(value) || strings.Contains(value, "\x00")) {
			wrong = "the value is not UTF-8, or holds a NUL"
		}
		if wrong != "" {
			problems = append(problems, envProblem{begins, wrong})
			continue
		}
		found = append(found, assignment{name, value, place, len(whole) - len(rest)})
	}
	return whole, found, problems
}

// unquote reads the quoted value at the beginning of s. The result behind is the text
// after it.
func unquote(s string) (value, behind string, ok bool) {
	quote := s[0]
	var out strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == quote:
			return out.String(), s[i+1:], true
		case quote == '"' && s[i] == '\\' && i+1 < len(s):
			i++
			if at := strings.IndexByte(`nrt"\$`, s[i]); at >= 0 {
				out.WriteByte("\n\r\t\"\\$"[at])
			} else {
				out.WriteString(s[i-1 : i+1])
			}
		default:
			out.WriteByte(s[i])
		}
	}
	return "", "", false
}

func readEnv(path string) (map[string]string, []envProblem, error) {
	data, err := ReadFile(path, MaxFile)
	if err != nil {
		return nil, nil, err
	}
	all, problems := parseEnv(data)
	return all, problems, nil
}

func withoutPath(err error) error {
	if of, ok := errors.AsType[*os.PathError](err); ok {
		return of.Err
	}
	return err
}

// withFiles returns a Getenv that asks getenv and then the files, in order. A file or
// line that cannot be read is a warning, because perhaps no server needs it.
func withFiles(getenv Getenv, files []string) (Getenv, []Warning) {
	var warnings []Warning
	var behind []map[string]string
	for _, file := range files {
		all, problems, err := readEnv(file)
		if err != nil {
			warnings = append(warnings, Warning{Position{file, 1, 1}, fmt.Sprintf("the variables of this file are not read: %v", withoutPath(err))})
		}
		for _, p := range problems {
			warnings = append(warnings, Warning{Position{file, p.line, 1}, "this line is not read: " + p.text})
		}
		behind = append(behind, all)
	}
	return func(name string) (string, bool) {
		if value, ok := getenv(name); ok {
			return value, true
		}
		for _, all := range behind {
			if value, ok := all[name]; ok {
				return value, true
			}
		}
		return "", false
	}, warnings
}

// envFile reads the variables of a file into the server's environment. Variables of env take
// precedence.
func (r *serverReader) envFile(m member, _ string) {
	value, ok := m.value, true
	if r.folder != "" {
		value, ok = r.fromHome(m.value, "envFile")
	}
	if !ok {
		return
	}
	path := r.textWith(value, "envFile", variables{getenv: r.getenv, project: r.folder})
	switch {
	case path == "":
		return
	case r.folder == "":
		r.lacks(m.value.at, r.what+": envFile", "it is read on one machine only", "put the variables into env, and a secret where env names it as ssm:NAME", nil)
		return
	case !filepath.IsAbs(path):
		path = filepath.Join(r.folder, path)
	}
	r.envFiles = append(r.envFiles, path)
	all, problems, err := readEnv(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		r.lacks(m.value.at, r.what+": envFile", "there is no such file", "create the file, or remove envFile; a relative path starts at the folder of the servers file", nil)
	case err != nil:
		r.lacks(m.value.at, r.what+": envFile", fmt.Sprintf("the file cannot be read: %v", withoutPath(err)), "repair it, or remove envFile", nil)
	}
	for _, p := range problems {
		r.lacks(m.value.at, r.what+": envFile", fmt.Sprintf("line %d of the file cannot be read: %s", p.line, p.text), "mend the line", nil)
	}
	maps.Copy(r.elsewhere, all)
}
