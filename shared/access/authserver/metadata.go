package authserver

import (
	"net/http"
	"strings"
)

// metadata serves the metadata of the authorization server (RFC 8414). There is none in
// the form of OpenID Connect, because no ID tokens are issued here.
func (b *Server) metadata(w http.ResponseWriter, _ *http.Request) error {
	at := b.settings.PublicURL
	document := map[string]any{
		"issuer":                                         at,
		"authorization_endpoint":                         at + "/authorize",
		"token_endpoint":                                 at + "/token",
		"registration_endpoint":                          at + "/register",
		"revocation_endpoint":                            at + "/revoke",
		"response_types_supported":                       []string{"code"},
		"response_modes_supported":                       []string{"query"},
		"grant_types_supported":                          []string{grantCode, grantRefresh, grantClient},
		"code_challenge_methods_supported":               []string{"S256"},
		"token_endpoint_auth_methods_supported":          authMethods(),
		"revocation_endpoint_auth_methods_supported":     authMethods(),
		"scopes_supported":                               strings.Fields(*b.settings.Scope),
		"authorization_response_iss_parameter_supported": true,
		"client_id_metadata_document_supported":          true,
	}
	if len(b.companies) > 0 {
		document["grant_types_supported"] = []string{grantCode, grantRefresh, grantClient, grantJWT}
		document["authorization_grant_profiles_supported"] = []string{"urn:ietf:params:oauth:grant-profile:id-jag"}
	}
	w.Header().Set("Cache-Control", "public, max-age=300")
	writeJSON(w, http.StatusOK, document)
	return nil
}

// Grant types (RFC 6749, RFC 7523).
const (
	grantCode    = "authorization_code"
	grantRefresh = "refresh_token"
	grantClient  = "client_credentials"
	grantJWT     = "urn:ietf:params:oauth:grant-type:jwt-bearer"
)

// Methods by which clients authenticate (RFC 7591 §2).
const (
	authNone  = "none"
	authPost  = "client_secret_post"
	authBasic = "client_secret_basic"
)

func authMethods() []string { return []string{authNone, authPost, authBasic} }
