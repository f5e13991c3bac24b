package serversedit

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// File is the text of a servers file. If a method fails, the text stays unchanged.
type File struct {
	name  string // path of the file, for messages
	text  []byte
	names []string // names of its servers
}

// Parse parses a servers file. The argument name is its path. An empty text stands for a file
// without servers. The error is that of [serversfile.Entries].
func Parse(text []byte, name string) (*File, error) {
	f := &File{name: name, text: text}
	if len(text) == 0 {
		f.text = []byte("{\n  \"mcpServers\": {}\n}\n")
	}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) read() error {
	entries, err := serversfile.Entries(f.text, f.name)
	f.names = nil
	for _, e := range entries {
		f.names = append(f.names, e.Name)
	}
	return err
}

// Text returns the content of the file.
func (f *File) Text() []byte { return f.text }

// Names returns the names of all servers, in the order of the file.
func (f *File) Names() []string { return slices.Clone(f.names) }

// Has reports whether the file has a server with this name, even one that cannot be served.
func (f *File) Has(name string) bool { return slices.Contains(f.names, name) }

// Set adds a server at the end, or replaces the server with this name.
func (f *File) Set(name string, e Entry) error {
	return f.change(func() ([]byte, error) { return jsonedit.Set(f.text, e.JSON(), f.path(name)...) })
}

// SetVariable sets an environment variable of a server.
func (f *File) SetVariable(server, name, value string) error {
	return f.change(func() ([]byte, error) {
		return jsonedit.Set(f.text, jsonedit.Encode(value), f.path(server, "env", name)...)
	})
}

// SetOurs sets a member of the file's x-dormouse. The argument path leads to the member, and value
// is JSON.
func (f *File) SetOurs(value []byte, path ...string) error {
	return f.change(func() ([]byte, error) {
		return jsonedit.Set(f.text, value, append([]string{"x-dormouse"}, path...)...)
	})
}

// Remove removes a server from the file. If there is none with this name, nothing changes.
func (f *File) Remove(name string) error {
	return f.change(func() ([]byte, error) { return jsonedit.Delete(f.text, f.path(name)...) })
}

func (f *File) path(name string, below ...string) []string {
	return append([]string{"mcpServers", name}, below...)
}

func (f *File) change(edit func() ([]byte, error)) error {
	text, err := edit()
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(f.name), err)
	}
	changed := &File{name: f.name, text: text}
	if err := changed.read(); err != nil {
		return err
	}
	*f = *changed
	return nil
}

// Switch enables or disables a server with the key x-dormouse.enabled, which other clients ignore.
// To enable a server, it removes that key. It sets the key to true only if another client's key
// would still disable the server.
func (f *File) Switch(name string, on bool) error {
	const ours, enabled = "x-dormouse", "enabled"
	if !on {
		return f.change(func() ([]byte, error) {
			return jsonedit.Set(f.text, []byte("false"), f.path(name, ours, enabled)...)
		})
	}
	return f.change(func() ([]byte, error) {
		text, err := jsonedit.Delete(f.text, f.path(name, ours, enabled)...)
		if err != nil {
			return nil, err
		}
		entry, ok, err := jsonedit.Get(text, f.path(name)...)
		if err != nil || !ok {
			return text, errors.Join(err)
		}
		var keys struct {
			Disabled json.RawMessage `json:"disabled"`
			Enabled  json.RawMessage `json:"enabled"`
			Ours     json.RawMessage `json:"x-dormouse"`
		}
		if json.Unmarshal(entry, &keys) != nil {
			return nil, fmt.Errorf("%s is not an object", name)
		}
		if string(keys.Ours) == "{}" {
			if text, err = jsonedit.Delete(text, f.path(name, ours)...); err != nil {
				return nil, err
			}
		}
		off := keys.Disabled != nil && string(keys.Disabled) != "false" || keys.Enabled != nil && string(keys.Enabled) != "true"
		if !off {
			return text, nil
		}
		return jsonedit.Set(text, []byte("true"), f.path(name, ours, enabled)...)
	})
}
