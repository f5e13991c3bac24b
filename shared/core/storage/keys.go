package storage

import (
	"strings"
	"time"
)

// Identity is what authentication knows about a caller.
type Identity struct {
	Tenant    string
	Principal string
	// Credential is the ID of the API key or grant that the caller used, "" for a credential that
	// Dormouse cannot revoke. It is no secret and may be logged.
	Credential string
	// Props are further facts about the principal, such as the claims of a token. They are
	// a JSON object of at most MaxProps bytes, or nil. Native servers get them.
	Props []byte
	// Scopes are those of the caller's token. They count only if Scoped is set: the
	// holder of an API key is not bound by scopes.
	Scopes []string
	Scoped bool
	// ToolRules names those of the server's rules for tools (in access.allow) that the caller fits.
	// They count only if Scoped is set.
	ToolRules []string
	// Members are the servers of a group that the caller may use, each with the caller's ToolRules
	// there. Only connections and tickets for a group have them.
	Members map[string][]string `json:",omitempty"`
}

// KeyID returns the Credential if it is the ID of an API key. For that of a token, which has the
// form KIND:TEXT, it returns "".
func (i Identity) KeyID() string {
	if strings.Contains(i.Credential, ":") {
		return ""
	}
	return i.Credential
}

// EveryServer in Key.Servers allows all servers.
const EveryServer = "*"

// Role says what the holder of a key may do.
type Role string

// The roles. Package apikey says what each of them permits.
const (
	RoleUser     Role = ""         // calls servers
	RoleViewer   Role = "viewer"   // sees what runs and what there is, and calls nothing
	RoleAuditor  Role = "auditor"  // as RoleViewer, and reads the arguments and results of calls, if a server keeps them for auditors
	RoleOperator Role = "operator" // calls, sees everything, and acts: stops, ends, manages keys
)

// Key is the record of an API key. The key itself is not stored.
type Key struct {
	ID        string // the part of the key that is no secret
	Rev       int64  // set by the store; Save fails unless it is the stored one
	Hash      []byte // SHA-256 of the whole key
	Tenant    string
	Principal string   // the principal that the holder acts as; when the key is replaced, the new key has the same
	Servers   []string // names of the servers that the key is for, or EveryServer
	Role      Role     `json:",omitempty"`
	Props     []byte   `json:",omitempty"` // Identity.Props of the principal
	Created   time.Time
	Used      time.Time // last use, updated lazily; zero for never
	Revoked   time.Time // zero if it is not revoked
	Expires   time.Time // the key is good until then; zero means for ever
}

// EntryTicket is the record of a connect ticket: the right to connect to a server once. It is for a web
// page, which cannot send headers with a WebSocket.
type EntryTicket struct {
	Hash     string // SHA-256 of the ticket, hexadecimal
	Server   string
	Identity // the caller that the ticket was issued to
	Expires  time.Time
}
