package resourceserver

// SameHost is the redirect rule of the client that a server gets by default.
var SameHost = sameHost

// Among compares audiences with a server's URLs.
func Among(publicURL string, audiences []string, server string) bool {
	return resources{Settings{PublicURL: publicURL}}.among(audiences, server)
}
