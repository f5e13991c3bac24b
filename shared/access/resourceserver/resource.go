package resourceserver

import (
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// resources maps the audiences of tokens to servers, and tells clients where to get tokens.
// [ResourceServer] and [Issued] embed it.
type resources struct{ settings Settings }

const wellKnown = "/.well-known/oauth-protected-resource"

// MetadataURL returns the URL of the metadata of an address (RFC 9728 §3.1).
func (r resources) MetadataURL(address string) string {
	return r.settings.PublicURL + wellKnown + address
}

// among reports whether one of the audiences is the server or the group. All URLs of a server
// are one audience: Streamable HTTP and HTTP+SSE, with and without a slash at the end. Case
// matters except in scheme and host.
func (r resources) among(audiences []string, server string) bool {
	return slices.ContainsFunc(audiences, func(a string) bool {
		if slices.Contains(r.settings.Audiences[server], a) {
			return true
		}
		if IsGroup(server) {
			address := strings.TrimSuffix(server, "mcp")
			rest, ok := strings.CutPrefix(canonical(a), canonical(r.settings.PublicURL)+address)
			return ok && served(rest)
		}
		rest, ok := strings.CutPrefix(canonical(a), canonical(r.settings.PublicURL)+"/"+server+"/")
		return ok && served(rest)
	})
}

// served reports whether rest, the last part of an address, is the name of a transport.
func served(rest string) bool {
	return rest == "mcp" || rest == "mcp/" || rest == "sse" || rest == "sse/"
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

// Server returns the server that a resource of a request names (RFC 8707 §2): its URL in
// one of its forms, possibly with a query. For a group it returns the group's address.
func (s Settings) Server(servers []string, resource string) (string, bool) {
	resource, _, _ = strings.Cut(resource, "?")
	for _, name := range servers {
		if (resources{s}).among([]string{resource}, name) {
			return name, true
		}
	}
	for address := range s.Groups {
		if (resources{s}).among([]string{resource}, address) {
			return address, true
		}
	}
	return "", false
}

// Challenge returns the WWW-Authenticate header for a request that was refused with err, "" for
// none (RFC 6750 §3, RFC 9728 §5.1). The argument address is the address of the request, as for
// Metadata, and tried says that the request had a token.
func (r resources) Challenge(address string, tried bool, err error) string {
	problem, wanted := "", strings.Fields(*r.settings.Scope)
	var scope *scopeError
	switch code := storage.CodeOf(err); {
	case code == storage.Unauthenticated && tried:
		problem = "invalid_token"
	case code == storage.Unauthenticated:
	case errors.As(err, &scope):
		problem, wanted = "insufficient_scope", scope.wanted
	case code == storage.Invalid:
		problem = "invalid_request"
	default:
		return ""
	}
	header := "Bearer "
	if problem != "" {
		header += `error="` + problem + `", `
	}
	header += `resource_metadata="` + r.MetadataURL(address) + `"`
	if len(wanted) > 0 {
		header += `, scope="` + strings.Join(wanted, " ") + `"`
	}
	return header
}

// Metadata returns the protected resource metadata (RFC 9728 §2) of a server at an address. The
// address is the path exactly as a client calls it, such as "/SERVER/mcp" or "/mcp": clients
// compare the resource with the URL that they call.
func (r resources) Metadata(server, address string) []byte {
	document := struct {
		Resource string   `json:"resource"`
		Issuers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
		Name     string   `json:"resource_name"`
	}{r.settings.PublicURL + address, []string{r.settings.Issuer}, strings.Fields(*r.settings.Scope), []string{"header"}, server}
	text, err := json.Marshal(document)
	if err != nil {
		panic("resourceserver: " + err.Error()) // strings always marshal
	}
	return text
}
