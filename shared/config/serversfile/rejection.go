package serversfile

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Rejection is a server of the file that cannot be hosted. The other servers are hosted all the
// same.
type Rejection struct {
	Name   string   // as in the file, even if it is no valid name
	Errors []*Error // its mistakes, in the order of the file; at least one
}

// Reason describes the first mistake, its correction and its place, in words for a user
// of the server: `WEATHER_KEY is not set: … (servers.json:14:32)`. It holds no value of
// a variable and not the folder of the file.
func (r Rejection) Reason() string { return fmt.Sprintf("%s (%s)", r.Cause(), r.Place()) }

// Cause is the Reason without its place.
func (r Rejection) Cause() string {
	return strings.TrimPrefix(r.Errors[0].Reason, fmt.Sprintf("server %q: ", r.Name))
}

// Place is where the first mistake is, and how many more there are:
// `servers.json:14:32, and 2 more`.
func (r Rejection) Place() string {
	place := r.Errors[0].Position
	place.File = filepath.Base(place.File)
	if more := len(r.Errors) - 1; more > 0 {
		return fmt.Sprintf("%s, and %d more", place, more)
	}
	return place.String()
}

// Lacks returns the variables without which the server cannot be hosted, each once. Lacks returns
// none if the server also has other mistakes.
func (r Rejection) Lacks() (all []Variable) {
	for _, e := range r.Errors {
		if e.Lacks == nil {
			return nil
		}
		if !slices.ContainsFunc(all, func(v Variable) bool { return v.Name == e.Lacks.Name }) {
			all = append(all, *e.Lacks)
		}
	}
	return all
}

// String returns `server "NAME" is not served: REASON`.
func (r Rejection) String() string {
	return fmt.Sprintf("server %q is not served: %s", r.Name, r.Reason())
}

// Rejected returns the servers of the file that cannot be hosted, in the order of the
// file. The caller owns the slice.
func (c *File) Rejected() []Rejection { return append([]Rejection(nil), c.rejected...) }

// Reason says why a server of the file is not served. For a rejected server it is
// [Rejection.Reason]. It is "" for a server that is served, and for a name that is not in the
// file.
func (c *File) Reason(name string) string {
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
