package storage

import "time"

// Grant is the record of a permission that a user gave to a client: to call one server in the
// user's name. Package authserver writes it. Access and refresh tokens are not stored.
type Grant struct {
	// ID is no secret: lists and logs may show it. A token cannot be made from it.
	ID        string
	Rev       int64 // set by the store; Save fails unless it is the stored one
	Tenant    string
	Principal string
	Issuer    string   `json:",omitempty"` // where the user has signed in; "" in a record that an older release wrote
	Server    string   // the server that the client may call
	Scopes    []string // what the client may do at the server
	Client    string   // the client's id
	Name      string   // what the client calls itself; not verified
	Host      string   // the host to which the user's browser was sent with the authorization code
	Props     []byte   `json:",omitempty"` // Identity.Props of the principal
	Claims    []byte   `json:",omitempty"` // the claims that decide who may use a server: JSON, at most 2 KiB

	// Current, Previous and Before are SHA-256 hashes of the last three refresh tokens.
	// Each refresh token is computed from Salt and the token before it.
	Current  []byte `json:",omitempty"`
	Previous []byte `json:",omitempty"`
	Before   []byte `json:",omitempty"` // nil in a record that an older release wrote
	Salt     []byte `json:",omitempty"`

	Created time.Time
	Rotated time.Time // when Current was first issued
	Revoked time.Time // zero if it is not revoked
	Expires time.Time // from then on Get does not find the grant
}
