package authserver

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// browserSchemes are the schemes that a browser runs, opens or translates itself. Any other
// scheme except http and https leads to the program that has claimed it (RFC 8252 §7.1).
func browserSchemes() []string {
	return []string{
		"about", "blob", "data", "file", "javascript", "vbscript",
		"android-app", "filesystem", "ftp", "intent", "jar", "view-source", "ws", "wss",
	}
}

// checkRedirect refuses redirect URIs that codes must not be sent to, and those that a browser
// may read in another way than net/url.
func checkRedirect(text string) error {
	u, err := url.Parse(text)
	odd := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`\<>"'^{}|*`+"`", c) }
	switch {
	case text == "" || len(text) > maxID:
		return errors.New("it is empty or too long")
	case err != nil || strings.ContainsFunc(text, odd):
		return errors.New("it cannot be read as a URI; check its characters")
	case strings.Contains(text, "#"):
		return errors.New("it has a fragment; leave out what follows #")
	case u.User != nil || strings.Contains(u.Host, "@"):
		return errors.New("it has a user name; leave it out")
	case u.Scheme == "" || !strings.HasPrefix(text, u.Scheme+":"):
		return errors.New("it has no scheme in lower case; begin it with https://")
	case slices.Contains(browserSchemes(), u.Scheme):
		return errors.New("its scheme is one that browsers open themselves; use https, http on loopback, or the scheme of a program")
	case !strings.HasPrefix(text, u.Scheme+":/"):
		return errors.New("its scheme has no / behind it; write SCHEME://HOST/PATH or SCHEME:/PATH")
	case isPrivate(u):
		return nil
	case u.Host == "" || !strings.HasPrefix(text, u.Scheme+"://") || !isHost(u):
		return errors.New("it has no host, or one that cannot be read; write a name or an address")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("it is http and not on loopback; use https")
	}
	return nil
}

// isPrivate reports whether a URI has the private-use scheme of a program on the user's
// machine (RFC 8252 §7.1).
func isPrivate(u *url.URL) bool { return u.Scheme != "https" && u.Scheme != "http" }

// usable returns the redirect URIs to which the codes of a client may be sent, and says
// what is wrong with each of the others. A private-use scheme is for clients without a
// secret: a program that every user has cannot keep one.
func usable(uris []string, secret bool) (good []string, wrong error) {
	var reasons []string
	for i, uri := range uris {
		err := checkRedirect(uri)
		if u, _ := url.Parse(uri); err == nil && secret && isPrivate(u) {
			err = errors.New("it has the scheme of a program; register the client without a secret")
		}
		if err != nil {
			reasons = append(reasons, fmt.Sprintf("number %d: %v", i+1, err))
			continue
		}
		good = append(good, uri)
	}
	if len(reasons) > 0 {
		wrong = errors.New(strings.Join(reasons, ". "))
	}
	return good, wrong
}

// isHost reports whether a host has only the characters of names and addresses.
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

// hostOf returns the host of a redirect URI as the user sees it. For the private-use scheme
// of a program it returns the scheme, too.
func hostOf(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return ""
	case isPrivate(u) && u.Host == "":
		return u.Scheme + ":"
	case isPrivate(u):
		return u.Scheme + "://" + u.Host
	}
	return u.Hostname()
}

// reachesProgram reports whether a redirect URI leads to a program on the machine of the
// user's browser.
func reachesProgram(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (isPrivate(u) || isLoopback(u.Hostname()))
}

func withQuery(uri string, q url.Values) string {
	separator := "?"
	if strings.Contains(uri, "?") {
		separator = "&"
	}
	return uri + separator + q.Encode()
}
