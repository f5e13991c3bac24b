// Package catalog reads the servers file: which MCP servers are hosted, under
// which names, and how each is started. The file has the `mcpServers` form that
// desktop clients already use, with our additions under the one key
// `x-dormouse`, so the same file keeps working elsewhere.
//
// The package hides the file's syntax, the expansion of `${VAR}`, and what makes
// two configurations the same one (Server.Digest). Every complaint names its
// place as file:line:column. It starts nothing, resolves no commands on the PATH
// and never prints the value of an environment variable.
package catalog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// MaxFile is the largest servers file that is read, in bytes.
const MaxFile = 1 << 20

// Getenv looks up a variable for `${VAR}`; ok is false when it is not set.
// [os.LookupEnv] is one. A nil Getenv knows no variables.
type Getenv = func(name string) (value string, ok bool)

// Catalog is the content of one servers file. It does not change after it was
// read and may be used from several goroutines.
type Catalog struct {
	names    []string // of servers
	servers  map[string]Server
	rejected []Rejection
	access   []byte
}

// Access is the section x-dormouse.access of the file as JSON, without comments: which
// tokens are taken, for package oauth. nil if there is none. It must not be modified.
func (c *Catalog) Access() []byte { return c.access }

// Server returns the server of that name, also when it is disabled: whoever
// would launch it looks at Server.Disabled. Args and Env are shared with the
// catalog and must not be modified.
func (c *Catalog) Server(name string) (Server, bool) {
	s, ok := c.servers[name]
	return s, ok
}

// Names returns the names of all servers, disabled ones too but not those that are
// rejected, in the order of the file. The caller owns the slice.
func (c *Catalog) Names() []string { return slices.Clone(c.names) }

// Position is a place in a servers file. Line and Column count from 1; a column
// is one character, not one byte. A byte order mark is not counted.
type Position struct {
	File         string
	Line, Column int
}

// String gives file:line:column.
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Warning is something in the file that has no effect or not the effect its
// author may expect. The file is used all the same. Text holds no values.
type Warning struct {
	Position
	Text string
}

// String gives file:line:column: text.
func (w Warning) String() string { return w.Position.String() + ": " + w.Text }

// Error is one thing wrong with a servers file, or with a server in it. Reason says
// what to do about it and holds no value of an environment variable.
type Error struct {
	Position
	Reason string
}

// Error gives file:line:column: reason.
func (e *Error) Error() string { return e.Position.String() + ": " + e.Reason }

// Load reads the servers file at path. Relative paths inside the file are left
// as they are: they are those of the box's image. Errors are those of [Parse], or wrap
// what the file system said.
func Load(path string, getenv Getenv) (*Catalog, []Warning, error) {
	return load(path, "", getenv)
}

// LoadHere is Load on the machine that the servers run on: relative paths are those of
// the folder of the file. A relative cwd, the cwd of a server that has none and no
// workspace, a command with a slash, and arguments that name files there (with a dot or
// a slash in them) become absolute. A file in .vscode or .cursor counts as one of the
// folder above.
//
// A variable that getenv does not know comes from envFiles, the first one first, and then
// from the file .env in that folder, if there is one. A line that is wrong in them is a
// warning. One of envFiles that cannot be read is an error.
func LoadHere(path string, getenv Getenv, envFiles ...string) (*Catalog, []Warning, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, fmt.Errorf("folder of the servers file: %w", err)
	}
	folder := projectOf(absolute)
	for _, file := range envFiles {
		if _, _, err := readEnv(file); err != nil {
			return nil, nil, fmt.Errorf("file of variables: %w", err)
		}
	}
	if beside := filepath.Join(folder, ".env"); exists(beside) {
		envFiles = append(slices.Clone(envFiles), beside)
	}
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	getenv, wrong := withFiles(getenv, envFiles)
	c, warnings, err := load(path, folder, getenv)
	return c, append(wrong, warnings...), err
}

func load(path, folder string, getenv Getenv) (*Catalog, []Warning, error) {
	data, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	return parse(data, path, folder, getenv)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no servers file: create it or name another: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("servers file cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("servers file cannot be read: %w", err)
	}
	return data, nil
}

// Parse reads the content of a servers file; file is only used to name places.
//
// Comments and commas behind the last element are allowed, as in the files of
// editors. What is wrong with one server costs that server only: it is in
// [Catalog.Rejected]. A file that is wrong as a whole gives no catalog. Then the error
// joins one [*Error] for each thing found, in the order of the file, so that all can
// be mended at once. Warnings come with and without an error. data is not kept.
func Parse(data []byte, file string, getenv Getenv) (*Catalog, []Warning, error) {
	return parse(data, file, "", getenv)
}

// parse is Parse where relative paths are those of a folder, "" for wherever a server
// runs.
func parse(data []byte, file, folder string, getenv Getenv) (*Catalog, []Warning, error) {
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	r := &reader{source: newSource(file, data), folder: folder, getenv: getenv}
	c := &Catalog{servers: map[string]Server{}}
	root, problem := r.source.parse()
	if problem != nil {
		r.problems = append(r.problems, *problem)
	} else {
		r.catalog(root, c)
		r.sayIgnored()
	}
	warnings := make([]Warning, 0, len(r.warnings))
	for _, w := range inOrder(r.warnings) {
		warnings = append(warnings, Warning{r.source.position(w.at), w.text})
	}
	if len(r.problems) == 0 {
		return c, warnings, nil
	}
	var wrong []error
	for _, e := range r.errors(r.problems) {
		wrong = append(wrong, e)
	}
	return nil, warnings, errors.Join(wrong...)
}
