package oauth

// SameHost is how the client of a server that is given none follows redirects.
var SameHost = sameHost

// ParseKeys, Among and Fits are for fuzzing.
var (
	ParseKeys = parseKeys
	Matches   = matches
	KeysOf    = keysOf
)

// Among compares audiences with a server's URLs.
func Among(publicURL string, audiences []string, server string) bool {
	return resources{Settings{PublicURL: publicURL}}.among(audiences, server)
}
