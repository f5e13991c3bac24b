package oauth

import (
	"net/url"
	"slices"
	"strings"
)

// resources are the servers as tokens name them.
type resources struct{ settings Settings }

const wellKnown = "/.well-known/oauth-protected-resource"

// metadataURL is where the metadata of an address is (RFC 9728 §3.1).
func (r resources) metadataURL(address string) string {
	return r.settings.PublicURL + wellKnown + address
}

// among says whether one of the audiences is the server. Its URLs are one audience: that
// of Streamable HTTP and that of HTTP+SSE, with and without a slash behind. Scheme and
// host may be in any case, nothing else.
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
