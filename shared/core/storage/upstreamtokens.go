package storage

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"
)

// UpstreamToken is the record of what a principal has at a third party: an API key, or the
// tokens of an OAuth provider. Package credentials writes it.
type UpstreamToken struct {
	ID        string // the result of [UpstreamTokenID]
	Rev       int64  // set by the store; Save fails unless it is the stored one
	Tenant    string
	Principal string
	Provider  string // the name in `${principal:NAME}` of the servers file
	// Sealed is the secret itself, encrypted for this tenant, principal and provider. It
	// is "" if there is none, for example because the third party has refused it since.
	Sealed string `json:",omitempty"`
	// Until is when the secret ends; zero for one that does not end by itself.
	Until time.Time
	// Before the time Busy no instance asks the third party for a new secret: one is asking already, or
	// has just failed to get one.
	Busy    time.Time
	Created time.Time
	Changed time.Time // when Sealed was last written
	Expires time.Time // the row is gone then; zero means never
}

// UpstreamTokenID returns the ID of the token that a principal has at a provider.
func UpstreamTokenID(tenant, principal, provider string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "upstream %q %q %q", tenant, principal, provider))
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}

// Secret is a key or token that a principal has at a third party. It is in the clear, on
// its way to a process of that principal.
type Secret struct {
	Value string    `json:"value"`
	Until time.Time `json:"until,omitzero"` // when it ends; zero for one that does not end by itself
}

// String returns asterisks, so that no log shows the value.
func (Secret) String() string { return "***" }

// GoString is String, so that %#v does not show the value either.
func (s Secret) GoString() string { return s.String() }
