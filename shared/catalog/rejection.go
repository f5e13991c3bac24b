package catalog

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Rejection is a server of the file that cannot be hosted. The other servers are hosted
// all the same.
type Rejection struct {
	Name   string   // as in the file, even if it is no valid name
	Errors []*Error // its mistakes, in the order of the file; at least one
}

// Reason describes the first mistake, its correction and its place, in words for a user
// of the server: `WEATHER_KEY is not set: … (servers.json:14:32)`. It holds no value of
// a variable and not the folder of the file.
func (r Rejection) Reason() string {
	first := r.Errors[0]
	reason := strings.TrimPrefix(first.Reason, fmt.Sprintf("server %q: ", r.Name))
	place := first.Position
	place.File = filepath.Base(place.File)
	if more := len(r.Errors) - 1; more > 0 {
		return fmt.Sprintf("%s (%s, and %d more)", reason, place, more)
	}
	return fmt.Sprintf("%s (%s)", reason, place)
}

// String returns `server "NAME" is not served: REASON`.
func (r Rejection) String() string {
	return fmt.Sprintf("server %q is not served: %s", r.Name, r.Reason())
}

// Rejected returns the servers of the file that cannot be hosted, in the order of the
// file. The caller owns the slice.
func (c *Catalog) Rejected() []Rejection { return append([]Rejection(nil), c.rejected...) }

// Reason says why a server of the file is not served: [Rejection.Reason] for a rejected
// server, and for a disabled one that it is disabled. It is "" for a server that is
// served, and for a name that is not in the file.
func (c *Catalog) Reason(name string) string {
	for _, r := range c.rejected {
		if r.Name == name {
			return r.Reason()
		}
	}
	if c.servers[name].Disabled {
		return "it is disabled in the servers file"
	}
	return ""
}
