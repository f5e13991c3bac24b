package oauth

import (
	"net/url"
	"slices"
	"strings"
)

// resources maps the audiences of tokens to servers.
type resources struct{ settings Settings }

const wellKnown = "/.well-known/oauth-protected-resource"

// metadataURL returns the URL of the metadata of an address (RFC 9728 §3.1).
func (r resources) metadataURL(address string) string {
	return r.settings.PublicURL + wellKnown + address
}

// among reports whether one of the audiences is the server. All URLs of a server are one
// audience: Streamable HTTP and HTTP+SSE, with and without a slash at the end. Case
// matters except in scheme and host.
func (r resources) among(audiences []string, server string) bool {
	return slices.ContainsFunc(audiences, func(a string) bool {
		if slices.Contains(r.settings.Audiences[server], a) {
			return true
		}
		rest, ok := strings.CutPrefix(canonical(a), canonical(r.settings.PublicURL)+"/"+server+"/")
		return ok && (rest == "mcp" || rest == "mcp/" || rest == "sse" || rest == "sse/")
	})
}

// canonical writes scheme and host of a URL in lower case.
func canonical(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return text
	}
	host, path, slash := strings.Cut(rest, "/")
	u, err := url.Parse(scheme + "://" + host)
	if err != nil || u.User != nil || strings.ContainsAny(host, "?#%") {
		return text
	}
	text = strings.ToLower(scheme + "://" + host)
	if slash {
		text += "/" + path
	}
	return text
}
