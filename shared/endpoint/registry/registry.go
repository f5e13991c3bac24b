// Package registry lists the servers of an endpoint for clients of the MCP registry and for other
// Dormouses. It has the registry's API, version v0.1 (modelcontextprotocol/registry,
// docs/reference/api/openapi.yaml of 2025-12-01):
//
//	GET Prefix + servers                          cursor, limit, search, version, updated_since
//	GET Prefix + servers/{name}/versions
//	GET Prefix + servers/{name}/versions/{version}  or latest
//
// What the package says of a server comes from the server's last answer to initialize. The package
// wakes no box.
package registry

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/address"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Prefix begins the paths of the API. Clients of the API are configured with the part
// before /v0.1.
const Prefix = "/registry/v0.1/"

const (
	pageSize = 30
	mostPage = 100
	latest   = "latest"
)

// Registry answers requests for paths below [Prefix].
type Registry struct {
	// Records have the answers of servers to initialize.
	Records storage.Handshakes
	// PublicURL is the URL of the endpoint. If it is "", answers use the address to which
	// the request was sent.
	PublicURL string
	// Keys says that callers need an API key, and get it from the operator.
	Keys bool
}

type list struct {
	Servers  []response `json:"servers"`
	Metadata metadata   `json:"metadata"`
}

type metadata struct {
	Next  string `json:"nextCursor,omitempty"`
	Count int    `json:"count"`
}

// Answer is the transport.Document for paths below [Prefix]. Errors: NotFound, Invalid, Unavailable.
func (g Registry) Answer(r *http.Request, base string, may []sessions.Caller) (media string, answer any, err error) {
	answer, err = g.answer(r, base, may)
	return wire.MediaJSON, answer, err
}

func (g Registry) answer(r *http.Request, base string, may []sessions.Caller) (any, error) {
	base = strings.TrimSuffix(cmp.Or(g.PublicURL, base), "/")
	path := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, Prefix), "/")
	if path == "servers" {
		return g.list(r.Context(), base, may, r.URL.Query())
	}
	name, version, ok := named(path)
	if !ok {
		return nil, storage.Errorf(storage.NotFound, "there is nothing at this path; servers are at %sservers", Prefix)
	}
	i := slices.IndexFunc(may, func(c sessions.Caller) bool {
		return name == c.Server.Name || name == namespace(base)+"/"+c.Server.Name
	})
	if i < 0 {
		return nil, storage.Errorf(storage.NotFound, "this registry has no server %.100s for you", name)
	}
	all, err := g.describe(r.Context(), base, may[i:i+1])
	switch {
	case err != nil:
		return nil, err
	case version == "":
		return list{all, metadata{Count: len(all)}}, nil
	case version != latest && version != all[0].Server.Version:
		return nil, storage.Errorf(storage.NotFound, "%.100s has no version %.100s here, but %s", name, version, all[0].Server.Version)
	}
	return all[0], nil
}

// named reads servers/{name}/versions and servers/{name}/versions/{version}. The slash in a
// name may be escaped: gateways decode it or leave it.
func named(path string) (name, version string, ok bool) {
	path, ok = strings.CutPrefix(path, "servers/")
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	if name, all := strings.CutSuffix(path, "/versions"); all {
		return name, "", ok
	}
	at := strings.LastIndex(path, "/versions/")
	if !ok || at < 0 {
		return "", "", false
	}
	return path[:at], path[at+len("/versions/"):], true
}

// list returns one page of the list of servers, sorted by name.
func (g Registry) list(ctx context.Context, base string, may []sessions.Caller, q url.Values) (any, error) {
	limit := pageSize
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, storage.Errorf(storage.Invalid, "limit is a number from 1 to %d", mostPage)
		}
		limit = min(n, mostPage)
	}
	after, err := base64.RawURLEncoding.DecodeString(q.Get("cursor"))
	if err != nil {
		return nil, storage.Errorf(storage.Invalid, "this cursor is not from here; leave it out to begin anew")
	}
	var since time.Time
	if text := q.Get("updated_since"); text != "" {
		if since, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, storage.Errorf(storage.Invalid, "updated_since is a time such as 2026-01-02T15:04:05Z")
		}
	}
	word, version := strings.ToLower(q.Get("search")), q.Get("version")
	may = slices.DeleteFunc(slices.Clone(may), func(c sessions.Caller) bool {
		return c.Server.Name <= string(after) || !strings.Contains(strings.ToLower(namespace(base)+"/"+c.Server.Name), word)
	})
	slices.SortFunc(may, byName)
	byRecord := version != "" && version != latest || !since.IsZero()
	if !byRecord {
		may = may[:min(len(may), limit+1)] // with one server more than limit, list knows that there is another page
	}
	all, err := g.describe(ctx, base, may)
	if err != nil {
		return nil, err
	}
	if byRecord {
		all = slices.DeleteFunc(all, func(r response) bool {
			old := r.taken.Before(since) && !r.taken.IsZero()
			return old || version != "" && version != latest && version != r.Server.Version
		})
	}
	page := list{Servers: all}
	if len(all) > limit {
		page.Servers = all[:limit]
		page.Metadata.Next = base64.RawURLEncoding.EncodeToString([]byte(page.Servers[limit-1].hosted))
	}
	page.Metadata.Count = len(page.Servers)
	return page, nil
}

func byName(a, b sessions.Caller) int { return cmp.Compare(a.Server.Name, b.Server.Name) }

// describe returns what is known of servers. It reads their records concurrently.
func (g Registry) describe(ctx context.Context, base string, servers []sessions.Caller) ([]response, error) {
	all, failed := make([]response, len(servers)), make([]error, len(servers))
	var reads sync.WaitGroup
	for i, c := range servers {
		reads.Go(func() {
			record, err := g.Records.Handshake(ctx, storage.RecordFor(c.Tenant, c.Server.Digest), wire.V20251125)
			if err != nil && !errors.Is(err, storage.NotFound) {
				failed[i] = err
				return
			}
			all[i] = g.response(base, c.Server.Name, record)
		})
	}
	reads.Wait()
	return all, errors.Join(failed...)
}

// namespace returns the part before the "/" in the name of a server in the registry: the host
// of its endpoint in reverse, as in com.example.mcp. On loopback it is "local".
func namespace(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "local"
	}
	name := u.Hostname()
	ip := net.ParseIP(name)
	switch {
	case name == "" || address.Loopback(name):
		return "local"
	case ip != nil:
		return strings.ReplaceAll(name, ":", "-")
	}
	parts := strings.Split(strings.ToLower(name), ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".")
}
