package authserver

import "net/http"

func CheckAddress(address string) error { return checkAddress(address) }

func NewPublicClient() *http.Client { return newPublicClient() }

// NewGitHub returns a sign-in at a server like GitHub.
func NewGitHub(c Config, at string) Login {
	return newGitHub(c.Settings, nil, gitHubURLs{at + "/login/oauth/authorize", at + "/login/oauth/access_token", at + "/user", at + "/user/emails"})
}
