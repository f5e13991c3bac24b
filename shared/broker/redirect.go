package broker

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
)

// privateSchemes are the schemes of programs on the user's machine that may get codes,
// besides https, and http on loopback.
func privateSchemes() []string { return []string{"cursor", "vscode", "vscode-insiders"} }

// checkRedirect refuses redirect URIs that codes must not be sent to. It also refuses
// URIs that a browser may read differently.
func checkRedirect(text string) error {
	u, err := url.Parse(text)
	odd := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`\<>"'^{}|*`+"`", c) }
	switch {
	case text == "" || len(text) > maxID:
		return errors.New("a redirect URI is missing or too long")
	case err != nil || strings.ContainsFunc(text, odd):
		return errors.New("a redirect URI cannot be read")
	case strings.Contains(text, "#"):
		return errors.New("a redirect URI has a fragment; leave out what follows #")
	case u.User != nil || strings.Contains(u.Host, "@"):
		return errors.New("a redirect URI has a user name; leave it out")
	case u.Scheme != strings.ToLower(u.Scheme) || !strings.HasPrefix(text, u.Scheme+"://"):
		return errors.New("a redirect URI has a scheme that is not allowed; use https, or http on loopback")
	case slices.Contains(privateSchemes(), u.Scheme):
		return nil
	case u.Host == "" || !isHost(u):
		return errors.New("a redirect URI has no host")
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return errors.New("a redirect URI is neither https, nor http on loopback, nor the scheme of a known program")
}

// isHost reports whether a host has only the characters of names and addresses. A name
// has letters, digits, dots and hyphens.
func isHost(u *url.URL) bool {
	name := u.Hostname()
	if port := u.Port(); port == "0" || strings.HasSuffix(u.Host, ":") || len(port) > 5 {
		return false
	}
	if strings.Contains(name, ":") {
		return net.ParseIP(name) != nil
	}
	letter := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_'
	}
	return name != "" && !strings.HasPrefix(name, ".") && !strings.ContainsFunc(name, func(c rune) bool { return !letter(c) })
}

// isLoopback reports whether a host is the machine of the user's browser (RFC 8252 §7.3).
// Clients also use localhost.
func isLoopback(host string) bool {
	return host == "localhost" || host == "127.0.0.1" || host == "::1"
}

// portless returns a redirect URI without the port of a loopback address, which may
// change between registration and use (RFC 8252 §7.3).
func portless(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || !isLoopback(u.Hostname()) || u.Port() == "" {
		return text
	}
	return strings.Replace(text, "//"+u.Host, "//"+strings.TrimSuffix(u.Host, ":"+u.Port()), 1)
}

// hostOf returns the host of a redirect URI as the user sees it. For the private scheme
// of a program it returns the scheme.
func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	if slices.Contains(privateSchemes(), u.Scheme) {
		return u.Scheme + "://" + u.Host
	}
	return u.Hostname()
}

// withQuery appends parameters to a URI.
func withQuery(uri string, q url.Values) string {
	separator := "?"
	if strings.Contains(uri, "?") {
		separator = "&"
	}
	return uri + separator + q.Encode()
}
