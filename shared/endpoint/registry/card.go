package registry

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// CatalogPath is the path of the AI catalog, which has the card of each server. The catalog and
// the cards follow drafts of July 2026 (SEP-2127, and AI Catalog 1.0).
const CatalogPath = "/.well-known/ai-catalog.json"

const (
	cardSuffix  = "/mcp/server-card" // follows the name of a server in a path
	cardSchema  = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
	cardType    = "application/mcp-server-card+json"
	catalogType = "application/ai-catalog+json"
)

type catalog struct {
	Version string         `json:"specVersion"`
	Entries []catalogEntry `json:"entries"`
}

type catalogEntry struct {
	ID   string `json:"identifier"`
	Type string `json:"type"`
	URL  string `json:"url"`
}

// IsCard reports whether [Registry.Cards] answers requests for a path.
func IsCard(path string) bool {
	_, ok := cardOf(path)
	return ok || path == CatalogPath
}

// cardOf returns the name of the server whose card is at a path.
func cardOf(path string) (name string, ok bool) {
	path, rooted := strings.CutPrefix(path, "/")
	name, ok = strings.CutSuffix(path, cardSuffix)
	return name, ok && rooted && name != "" && !strings.Contains(name, "/")
}

// Cards returns the catalog of the servers in the argument may. If r asks for the card of one of them,
// Cards returns that card: a server.json with another schema, and with protocol versions. Cards wakes
// no server.
func (g Registry) Cards(r *http.Request, base string, may []sessions.Caller) (media string, answer any, err error) {
	base = strings.TrimSuffix(cmp.Or(g.PublicURL, base), "/")
	if r.URL.Path == CatalogPath {
		return catalogType, catalogOf(base, may), nil
	}
	name, _ := cardOf(r.URL.Path)
	i := slices.IndexFunc(may, func(c sessions.Caller) bool { return c.Server.Name == name })
	if i < 0 {
		return "", nil, storage.Errorf(storage.NotFound, "there is no server %.100s for you", name)
	}
	all, err := g.describe(r.Context(), base, may[i:i+1])
	if err != nil {
		return "", nil, err
	}
	c := all[0].Server
	c.Schema = cardSchema
	// Dormouse serves every server in all versions. 2024-11-05 is left out, because it does not
	// have the transport streamable-http.
	c.Remotes[0].Versions = append([]string{wire.V20260728}, slices.DeleteFunc(wire.LegacyVersions(), func(v string) bool { return v == wire.V20241105 })...)
	return cardType, c, nil
}

func catalogOf(base string, may []sessions.Caller) catalog {
	publisher := "local"
	if u, err := url.Parse(base); err == nil && u.Hostname() != "" {
		publisher = strings.ReplaceAll(u.Hostname(), ":", "-")
	}
	all := catalog{Version: "1.0", Entries: []catalogEntry{}}
	for _, c := range slices.SortedFunc(slices.Values(may), byName) {
		name := c.Server.Name
		all.Entries = append(all.Entries, catalogEntry{ID: "urn:air:" + publisher + ":mcp:" + name, Type: cardType, URL: base + "/" + name + cardSuffix})
	}
	return all
}
