package transport

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// split splits "/<server>/<resource>", with or without a slash at its end.
func split(path string) (server, resource string, ok bool) {
	path, rooted := strings.CutPrefix(strings.TrimSuffix(path, "/"), "/")
	server, resource, ok = strings.Cut(path, "/")
	return server, resource, ok && rooted && server != "" && !strings.Contains(resource, "/")
}

// asksForCard reports whether a path is one at which scanners look for what a host serves:
// /.well-known/mcp, mcp.json and mcp/server-card.json below /.well-known/.
func asksForCard(path string) bool {
	rest, ok := strings.CutPrefix(path, wellKnown+"mcp")
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '/')
}

func noCard() *problem {
	return refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, "there is no card at this path; /.well-known/ai-catalog.json has those of the servers that you may use")
}

// groupOf returns the name of the group that a path belongs to, "" for all servers. It
// also returns the rest of the path: "mcp", "sse" and "message" of HTTP+SSE, or "ticket".
func groupOf(path string) (name, resource string, ok bool) {
	rest := strings.TrimPrefix(strings.TrimSuffix(path, "/"), "/")
	if of, found := strings.CutPrefix(rest, "g/"); found {
		if name, rest, found = strings.Cut(of, "/"); !found || name == "" {
			return "", "", false
		}
	}
	return name, rest, strings.HasPrefix(path, "/") && slices.Contains([]string{"mcp", "sse", "message", "ticket"}, rest)
}

// groupAddress returns the address of a group, which names the group wherever a name of a server can stand.
func groupAddress(name string) string {
	if name == "" {
		return "/mcp"
	}
	return "/g/" + name + "/mcp"
}

// groupAsked returns the name of the group in the query of a WebSocket's URL. There "all" stands for
// the group at /mcp, whose name is "".
func groupAsked(query url.Values) string {
	if name := query.Get("group"); name != "all" {
		return name
	}
	return ""
}

const (
	wellKnown        = "/.well-known/"
	resourceMetadata = "/.well-known/oauth-protected-resource"
)

// addressOf returns the address of the server or group to which a path belongs, as the client wrote it:
// with the slash at its end, if any, and with the query. For /<server>/message it returns the address of
// the event stream, /<server>/sse, and for /<server>/ticket /<server>/mcp.
func addressOf(r *http.Request, path string) string {
	address := strings.TrimSuffix(path, "/")
	if begin, ok := strings.CutSuffix(address, "/message"); ok {
		return begin + "/sse"
	}
	if begin, ok := strings.CutSuffix(address, "/ticket"); ok {
		return begin + "/mcp"
	}
	// Leave out a query that would change in a header or in JSON.
	plain := func(c rune) bool { return c > ' ' && c <= '~' && !strings.ContainsRune(`"\<>`, c) }
	q := r.URL.RawQuery
	if q != "" && len(q) <= maxQuery && strings.IndexFunc(q, func(c rune) bool { return !plain(c) }) < 0 {
		path += "?" + q
	}
	return path
}

// maxQuery is the longest query that addressOf repeats, in bytes.
const maxQuery = 512

// HeaderPrefix is the header with the part of a path that a gateway or a proxy has taken off, such as
// the stage of an API.
const HeaderPrefix = "X-Forwarded-Prefix"

// prefix returns the path that clients write before the path of a request, "" for none.
func prefix(r *http.Request) string {
	path := strings.TrimSuffix(r.Header.Get(HeaderPrefix), "/")
	odd := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`"\<>,?#`, c) }
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsFunc(path, odd) {
		return ""
	}
	return path
}
