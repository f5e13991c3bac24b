package session

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"
)

// ValueScope says whose a durable value is, and how long it may live.
type ValueScope string

// The scopes of durable values.
const (
	ValueOfSession   ValueScope = "session"   // of one session, with which it goes
	ValueOfPrincipal ValueScope = "principal" // of all sessions of a principal with a server
	ValueOfServer    ValueScope = "server"    // of all sessions of a tenant with a server
)

// What a durable value may be at most, in bytes.
const (
	MaxValueName = 128
	MaxValueData = 256 << 10
)

// ValueKey names a durable value. Values of different tenants, servers, scopes and
// owners have nothing to do with each other, whatever their names.
type ValueKey struct {
	Tenant string
	Server string
	Scope  ValueScope
	Of     string // the session's ID, or the principal; "" in the scope of the server
	// Since is when the session was Created, to the millisecond, zero in other scopes:
	// ids of sessions that are pinned to modern clients come again, and the values of
	// the session before do not.
	Since time.Time
	Name  string // 1 to MaxValueName bytes
}

// Check says whether the key can name a value. Errors: Invalid.
func (k ValueKey) Check() error {
	of := k.Scope == ValueOfSession || k.Scope == ValueOfPrincipal
	switch {
	case !of && k.Scope != ValueOfServer:
		return Errorf(Invalid, "there is no scope %q of durable values", k.Scope)
	case k.Name == "" || len(k.Name) > MaxValueName:
		return Errorf(Invalid, "the name of a durable value has %d bytes; it needs 1 to %d", len(k.Name), MaxValueName)
	case of == (k.Of == ""), (k.Scope == ValueOfSession) == k.Since.IsZero():
		return Errorf(Invalid, "the key of a durable value does not name what its scope, %q, is about", k.Scope)
	}
	return nil
}

// Value is a durable value.
type Value struct {
	Key  ValueKey
	Rev  int64  // set by the store: SaveValue is refused unless it is the stored one; 0: there is none
	Data []byte // never empty where there is a value
	// Expires is when the value goes by itself, zero for never. In the scope of a
	// session it is zero.
	Expires time.Time
}

// Check says whether the value can be saved. Errors: Invalid (key, Expires),
// TooLarge.
func (v Value) Check() error {
	switch {
	case len(v.Data) > MaxValueData:
		return Errorf(TooLarge, "the durable value %q has %d bytes; at most %d are kept", v.Key.Name, len(v.Data), MaxValueData)
	case v.Key.Scope == ValueOfSession && !v.Expires.IsZero():
		return Errorf(Invalid, "the durable value %q goes with its session; it cannot expire by itself", v.Key.Name)
	}
	return v.Key.Check()
}

// NextRev is the revision of a value that is written over revision rev, or newly if
// rev is 0: then a random one, so that who has read a value that was deleted since
// never takes another one for it.
func NextRev(rev int64) int64 {
	if rev != 0 {
		return rev + 1
	}
	var b [8]byte
	_, _ = rand.Read(b[:])                              // never fails
	return int64(binary.BigEndian.Uint64(b[:])>>12) + 1 // and JSON keeps it
}

// Values keeps durable values.
//
// A value of a session stays for as long as the session's row, without anybody
// doing anything for it, and is deleted some time after. The session is not looked
// at: who has its record, and so the key, knows that it is there.
type Values interface {
	// LoadValue reads a value. One that is not there has Rev 0, and is no error.
	// Errors: Invalid.
	LoadValue(ctx context.Context, k ValueKey) (Value, error)
	// SaveValue writes a value if the stored Rev is still v.Rev, and returns it with
	// the next one, which no value under this key has had. Empty Data deletes: what is
	// returned has Rev 0. As with Save, a repeat may be a Conflict with oneself.
	//
	// Errors: Invalid, TooLarge, Conflict; NotFound from a driver that sees that the
	// session of the key is gone.
	SaveValue(ctx context.Context, v Value) (Value, error)
}
