// Package serversfile reads the servers file, which names the hosted MCP servers and says how to
// start each. The file has the `mcpServers` form of desktop clients, with additions of dormouse
// under the one key `x-dormouse`. MCP clients can still use the same file.
//
// Every complaint names its place as file:line:column. The package starts nothing, resolves no
// commands on the PATH and never prints the value of an environment variable.
package serversfile

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

// Getenv looks up a variable for `${VAR}`; ok is false if it is not set. [os.LookupEnv]
// is a Getenv. A nil Getenv has no variables.
type Getenv = func(name string) (value string, ok bool)

// File is the content of one servers file. It does not change after it was read and
// is safe for concurrent use.
type File struct {
	names    []string // of servers
	servers  map[string]Server
	rejected []Rejection
	access   []byte
	boxes    bool
	connect  []byte
	removed  map[string]string
	files    []string
	limits   []byte
	groups   map[string]Group
	file     *reader // the reader that parsed the file, for line numbers in errors; nil if the File comes from LoadAccepted
}

// Files returns the paths of all files that [LoadHere] has read, or would have read if they were
// there. If one of these files changes, the File may be out of date. The caller must not modify the
// slice.
func (c *File) Files() []string { return c.files }

// Access returns the section x-dormouse.access of the file as JSON, without comments. Variables in it
// are replaced by their values, if they are set. Access returns nil if the file has no such section.
// The caller must not modify the result.
func (c *File) Access() []byte { return c.access }

// BoxesMayCall reports whether programs in boxes may call the endpoints of their own machine
// (x-dormouse.access.boxes). If false, and a server of the file is in a sandbox with network
// access, the machine refuses such programs.
func (c *File) BoxesMayCall() bool { return c.boxes }

// Connect returns the section x-dormouse.connect of the file in the same form as Access. Package
// credentials reads the section, which describes the third parties of `${principal:NAME}`.
func (c *File) Connect() []byte { return c.connect }

// Limits returns the section x-dormouse.limits as JSON, without comments, and nil if there is
// none. Package quota reads the section. The caller must not modify the result.
func (c *File) Limits() []byte { return c.limits }

// Server returns the server of that name, also a disabled one: the caller checks Server.Disabled
// before it starts the server. Args and Env are shared with c and must not be modified.
func (c *File) Server(name string) (Server, bool) {
	s, ok := c.servers[name]
	return s, ok
}

// Names returns the names of all servers in the order of the file. It includes disabled
// servers and leaves out rejected ones. The caller owns the slice.
func (c *File) Names() []string { return slices.Clone(c.names) }

// Position is a position in a servers file. Line and Column count from 1; a column is one
// character, not one byte. A byte order mark is not counted.
type Position struct {
	File         string
	Line, Column int
}

// String returns file:line:column.
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Warning is a part of the file that has no effect, or another effect than its author may
// expect. The rest of the file is used. Text holds no values.
type Warning struct {
	Position
	Text string
}

// String returns file:line:column: text.
func (w Warning) String() string { return w.Position.String() + ": " + w.Text }

// Error is one mistake in a servers file, or in a server of it. Reason says how to
// correct it and holds no value of an environment variable.
type Error struct {
	Position
	Reason string
	Lacks  *Variable // the variable whose value is missing; nil for another mistake
}

// Variable is a value that the file takes from outside.
type Variable struct {
	Name   string // of the variable, in the environment or in a file of variables
	Input  string // ID, if the file has it as `${input:ID}`
	About  string // the description of the input, may be ""
	Secret bool   // the value must not be shown; true for all that are no inputs
}

// Error returns file:line:column: reason.
func (e *Error) Error() string { return e.Position.String() + ": " + e.Reason }

// Load reads the servers file at path. It leaves relative paths inside the file as they
// are: the box resolves them in its image. Its errors are those of [Parse], or wrap an
// error of the file system.
func Load(path string, getenv Getenv) (*File, []Warning, error) {
	return load(path, "", getenv, false)
}

// LoadHere is Load on the machine where the servers run: relative paths refer to the
// folder of the file. It makes these absolute:
//
//   - a relative cwd, and the cwd of a server that has neither a cwd nor a workspace;
//   - a command with a slash;
//   - an argument with a dot or a slash that names a file there.
//
// A file in .vscode or .cursor counts as a file of the folder above.
//
// LoadHere looks up a variable first by getenv, and then in envFiles, in order. Last comes the
// file .env in that folder, if there is one. A wrong line in these files is a warning. If
// LoadHere cannot read one of envFiles, it returns an error.
func LoadHere(path string, getenv Getenv, envFiles ...string) (*File, []Warning, error) {
	return loadHere(path, getenv, false, envFiles)
}

// LoadGuests is LoadHere for a machine that others than its user may call: each server with a command
// and without a profile is a guest, see [Box.Guest].
func LoadGuests(path string, getenv Getenv, envFiles ...string) (*File, []Warning, error) {
	return loadHere(path, getenv, true, envFiles)
}

func loadHere(path string, getenv Getenv, guests bool, envFiles []string) (*File, []Warning, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, fmt.Errorf("folder of the servers file: %w", err)
	}
	folder := FolderOf(absolute)
	for _, file := range envFiles {
		if _, _, err := readEnv(file); err != nil {
			return nil, nil, fmt.Errorf("file of variables: %w", err)
		}
	}
	beside := filepath.Join(folder, ".env")
	files := append(append([]string{path}, envFiles...), beside)
	if exists(beside) {
		envFiles = append(slices.Clone(envFiles), beside)
	}
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	getenv, wrong := withFiles(getenv, envFiles)
	c, warnings, err := load(path, folder, getenv, guests)
	if c != nil {
		c.files = append(files, c.files...)
	}
	return c, append(wrong, warnings...), err
}

func load(path, folder string, getenv Getenv, guests bool) (*File, []Warning, error) {
	data, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	return parse(data, path, folder, getenv, guests)
}

func read(path string) ([]byte, error) {
	data, err := ReadFile(path, MaxFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no servers file: create it with dormouse add or dormouse import, or name another with --servers: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("servers file cannot be read: %w", err)
	}
	return data, nil
}

// ReadFile reads a file that may come from others. It fails if the file is longer than limit, in bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d MiB", path, limit>>20)
	}
	return data, err
}

// Parse reads the content of a servers file. The argument file is only for positions in
// errors.
//
// Comments and commas after the last element are allowed, as in the files of editors. A mistake in
// one server rejects only that server, see [File.Rejected]. If there is a mistake in the file as a
// whole, Parse returns no File, and an error that joins one [*Error] for each mistake, also of the
// servers, in the order of the file. Parse returns warnings with and without an error. Parse does
// not keep data.
func Parse(data []byte, file string, getenv Getenv) (*File, []Warning, error) {
	return parse(data, file, "", getenv, false)
}

// ParseHere is LoadHere for data, the content of a file that would be at path. It reads no file of
// variables except those that a server names as envFile.
func ParseHere(data []byte, path string, getenv Getenv) (*File, []Warning, error) {
	return parse(data, path, FolderOf(path), getenv, false)
}

// parse is Parse with relative paths below folder; "" leaves them as they are.
func parse(data []byte, file, folder string, getenv Getenv, guests bool) (*File, []Warning, error) {
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	r := &reader{source: newSource(file, data), folder: folder, getenv: getenv, guests: guests}
	if folder != "" {
		r.exposed = exposedBy(file)
	}
	c := &File{servers: map[string]Server{}, file: r}
	root, problem := r.source.parse()
	if problem != nil {
		r.problems = append(r.problems, *problem)
	} else {
		r.root, r.byName = root, map[string]node{}
		r.catalog(root, c)
		r.sayIgnored()
		c.files = r.envFiles
	}
	warnings := make([]Warning, 0, len(r.warnings))
	for _, w := range inOrder(r.warnings) {
		warnings = append(warnings, Warning{r.source.position(w.at), w.text})
	}
	if len(r.problems) == 0 {
		return c, warnings, nil
	}
	all := r.errors(r.problems)
	for _, rejected := range c.rejected {
		all = append(all, rejected.Errors...)
	}
	return nil, warnings, joined(all)
}
