package session

import (
	"context"
	"time"
)

// Identity is what authentication finds out about a caller.
type Identity struct {
	Tenant    string
	Principal string
	// Credential names what the caller proved itself with, if that can be taken
	// away again: a key's ID. It proves nothing by itself and may be logged.
	Credential string
	// Props is what else is known of the principal, such as the claims of a token: a
	// JSON object of at most MaxProps bytes, nil for nothing. Native servers get it.
	Props []byte
}

// MaxProps bounds [Identity.Props]: a session keeps it.
const MaxProps = 16 << 10

// EveryServer in Key.Servers stands for all of them.
const EveryServer = "*"

// Key is the record of an API key. The key itself is known to its holder only.
type Key struct {
	ID        string // the part of the key that may be shown
	Rev       int64  // set by the store: SaveKey is refused unless it is the stored one
	Hash      []byte // SHA-256 of the whole key
	Tenant    string
	Principal string   // as whom its holder acts; a key that replaces this one has the same
	Servers   []string // it may be used for; or EveryServer
	Props     []byte   `json:",omitempty"` // of who uses it, see Identity
	Created   time.Time
	Used      time.Time // touched lazily; zero for never
	Revoked   time.Time // zero for a key that is good
	Expires   time.Time // the record goes then, and the key with it; zero is never
}

// EntryTicket is the record of a one-time right to connect to a server, for a
// client that cannot send headers. It is another thing than the ticket of an
// [Address].
type EntryTicket struct {
	Hash     string // SHA-256 of the ticket, hexadecimal
	Server   string
	Identity // of who asked for it
	Expires  time.Time
}

// Keys keeps what callers prove themselves with.
type Keys interface {
	// CreateKey stores a new key with Rev 1. Conflict if the ID is taken.
	CreateKey(ctx context.Context, k Key) error
	// Key reads one, also one that is revoked. NotFound if there is none.
	Key(ctx context.Context, id string) (Key, error)
	// SaveKey replaces a key if the stored Rev is still k.Rev, and stores Rev+1.
	// Conflict if not; NotFound if the row is gone. As with Save, a repeat may be a
	// Conflict with oneself.
	SaveKey(ctx context.Context, k Key) error
	// ListKeys returns keys of a tenant ("" for all) in order of ID, strictly after
	// an ID, at most limit. It may cost several round trips.
	ListKeys(ctx context.Context, tenant, after string, limit int) ([]Key, error)
	// PutEntryTicket stores a ticket.
	PutEntryTicket(ctx context.Context, t EntryTicket) error
	// TakeEntryTicket returns a ticket and removes it: of all who ask for it one at
	// most gets it. NotFound if there is none. After Unavailable it may be gone.
	TakeEntryTicket(ctx context.Context, hash string) (EntryTicket, error)
}

// MarshalKey is the JSON of a key without Rev. Errors: Invalid as
// [MarshalSession].
func MarshalKey(k Key) ([]byte, error) {
	k.Rev = 0
	return marshal(k)
}

// UnmarshalKey reads what [MarshalKey] wrote.
func UnmarshalKey(record []byte) (Key, error) { return unmarshal[Key](record) }

// MarshalEntryTicket is the JSON of a ticket. Errors: Invalid as [MarshalSession].
func MarshalEntryTicket(t EntryTicket) ([]byte, error) { return marshal(t) }

// UnmarshalEntryTicket reads what [MarshalEntryTicket] wrote.
func UnmarshalEntryTicket(record []byte) (EntryTicket, error) {
	return unmarshal[EntryTicket](record)
}
