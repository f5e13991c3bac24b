package serversfile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// accepted is the JSON form of a File. The process that reads the servers file passes it to the
// Lambda functions.
type accepted struct {
	Version  int                   `json:"version"`
	Servers  []marshaled           `json:"servers"`
	Rejected []Rejection           `json:"rejected,omitempty"`
	Access   json.RawMessage       `json:"access,omitempty"`
	Boxes    bool                  `json:"boxes,omitempty"`
	Connect  json.RawMessage       `json:"connect,omitempty"`
	Removed  map[string]string     `json:"removed,omitempty"`
	Limits   json.RawMessage       `json:"limits,omitempty"`
	Groups   map[string]Group      `json:"groups,omitempty"`
	Tools    map[string]ToolFilter `json:"tools,omitempty"` // settings of servers, by name
	Audit    map[string]Audit      `json:"audit,omitempty"` // settings of servers, by name
	Path     string                `json:"path,omitempty"`  // Server.Path, which all servers share
}

const acceptedVersion = 1

// Marshal returns c in the form that [LoadAccepted] reads: the servers with their variables
// expanded, the rejected and the removed ones, and the sections of the file. The text holds
// secrets in the clear.
func (c *File) Marshal() []byte {
	a := accepted{
		Version: acceptedVersion, Rejected: c.rejected, Access: c.access, Boxes: c.boxes, Connect: c.connect, Removed: c.removed,
		Limits: c.limits, Groups: c.groups, Tools: map[string]ToolFilter{}, Audit: map[string]Audit{},
	}
	for _, name := range c.names {
		s := c.servers[name]
		a.Servers = append(a.Servers, marshaled(s))
		a.Path = cmp.Or(a.Path, s.Path)
		if !s.Tools.isZero() {
			a.Tools[name] = s.Tools
		}
		if s.Audit.Bodies != "" {
			a.Audit[name] = s.Audit
		}
	}
	return encode(a)
}

// LoadAccepted reads a file with the output of [File.Marshal]. The error never
// repeats the text, which holds secrets.
func LoadAccepted(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the accepted copy of the servers file cannot be read: %w", err)
	}
	var a accepted
	if json.Unmarshal(data, &a) != nil || a.Version != acceptedVersion {
		return nil, errors.New("the accepted copy of the servers file is not as this release writes it")
	}
	c := &File{
		servers: map[string]Server{}, rejected: a.Rejected, access: a.Access, boxes: a.Boxes, connect: a.Connect, removed: a.Removed,
		limits: a.Limits, groups: a.Groups,
	}
	for _, m := range a.Servers {
		if !validName(m.Name) {
			return nil, fmt.Errorf("the accepted copy of the servers file has a wrong name %q", m.Name)
		}
		c.names = append(c.names, m.Name)
		s := m.server()
		s.Tools, s.Audit, s.Path = a.Tools[m.Name], a.Audit[m.Name], a.Path
		c.servers[m.Name] = s
	}
	return c, nil
}
