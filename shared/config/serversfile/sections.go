package serversfile

import (
	"fmt"
	"slices"
)

// Mistake returns a mistake in a section that another package reads: x-dormouse.SECTION of a
// server, or of the file if server is "". The position is that of key in the section, or of the
// section if it does not have the key.
func (c *File) Mistake(server, section, key, reason string) *Error {
	holder, who := c.file.root, ""
	if server != "" {
		holder, who = c.file.byName[server], fmt.Sprintf("server %q: ", server)
	}
	place := c.file.source.position(holder.at)
	for _, name := range []string{"x-dormouse", section, key} {
		m, ok := holder.get(name)
		if !ok {
			break
		}
		holder, place = m.value, c.file.source.position(m.at)
	}
	return &Error{Position: place, Reason: who + reason}
}

// Reject makes a server of the file one that cannot be hosted, because of mistakes that
// [File.Mistake] returned. The file must not be in use yet.
func (c *File) Reject(server string, mistakes ...*Error) {
	c.names = slices.DeleteFunc(c.names, func(name string) bool { return name == server })
	delete(c.servers, server)
	c.rejected = append(c.rejected, Rejection{Name: server, Errors: mistakes})
	slices.SortStableFunc(c.rejected, func(a, b Rejection) int {
		return a.Errors[0].Line - b.Errors[0].Line
	})
	c.file.withoutRejected(c)
}
