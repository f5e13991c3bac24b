package storage

import (
	"crypto/rand"
	"encoding/binary"
	"time"
)

// ValueScope says to which owner a durable value belongs, and so how long it may live.
type ValueScope string

// The scopes of durable values.
const (
	ValueOfSession   ValueScope = "session"   // of one session; deleted with it
	ValueOfPrincipal ValueScope = "principal" // of all sessions of a principal with a server
	ValueOfServer    ValueScope = "server"    // of all sessions of a tenant with a server
)

// ValueKey names a durable value. Values with different tenants, servers, scopes or
// owners are different, even if their names are equal.
type ValueKey struct {
	Tenant string
	Server string
	Scope  ValueScope
	Of     string // the session's ID, or the principal; "" for ValueOfServer
	// Since is the session's Created, to the millisecond; zero in other scopes. A Modern session
	// that has expired is later made again with the same ID, and must not find old values.
	Since time.Time
	Name  string // 1 to MaxValueName bytes
}

// Check returns nil if the key can name a value. Errors: Invalid.
func (k ValueKey) Check() error {
	of := k.Scope == ValueOfSession || k.Scope == ValueOfPrincipal
	switch {
	case !of && k.Scope != ValueOfServer:
		return Errorf(Invalid, "there is no scope %q of durable values", k.Scope)
	case k.Name == "" || len(k.Name) > MaxValueName:
		return Errorf(Invalid, "the name of a durable value has %d bytes; it needs 1 to %d", len(k.Name), MaxValueName)
	case of == (k.Of == ""), (k.Scope == ValueOfSession) == k.Since.IsZero():
		return Errorf(Invalid, "the key of a durable value does not fit its scope %q", k.Scope)
	}
	return nil
}

// Value is a durable value: bytes that a native server keeps under a name.
type Value struct {
	Key  ValueKey
	Rev  int64  // set by the store; SaveValue fails unless it is the stored one; 0: no value is stored
	Data []byte // at most MaxValueData bytes; empty means there is no value
	// Expires is when the value is deleted; zero means never. It is zero for
	// ValueOfSession.
	Expires time.Time
}

// Check returns nil if the value can be saved. Errors: Invalid for its key or Expires,
// TooLarge for its Data.
func (v Value) Check() error {
	switch {
	case len(v.Data) > MaxValueData:
		return Errorf(TooLarge, "the durable value %q has %d bytes; at most %d are kept", v.Key.Name, len(v.Data), MaxValueData)
	case v.Key.Scope == ValueOfSession && !v.Expires.IsZero():
		return Errorf(Invalid, "the durable value %q goes with its session; it cannot expire by itself", v.Key.Name)
	}
	return v.Key.Check()
}

// NextRev returns the revision that follows rev. For rev 0 it is random: if a value is
// deleted and written anew, it must not get a revision that a reader still has.
func NextRev(rev int64) int64 {
	if rev != 0 {
		return rev + 1
	}
	var b [8]byte
	_, _ = rand.Read(b[:])                              // never fails
	return int64(binary.BigEndian.Uint64(b[:])>>12) + 1 // below 2^53, so that JSON keeps it
}
