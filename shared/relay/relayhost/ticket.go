package relayhost

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Ticket is what a sealed ticket says: the address of a request's end, for one
// generation of a box.
type Ticket struct {
	session.Address
	Gen     session.Generation `json:"g"`
	Expires int64              `json:"x"` // Unix seconds
}

// ticketLife is longer than any process is kept alive by one request.
const ticketLife = 7 * 24 * time.Hour

// Sealer seals and opens tickets and passes with one secret. It has no state and is
// safe for concurrent use.
type Sealer struct{ sealer, passes *session.Sealer }

// NewSealer makes a Sealer from a secret of at least 32 bytes (Invalid if
// shorter); it also opens what was sealed with the others. Everybody with the secret
// can write tickets: it lives in the secret store and never in a box.
func NewSealer(secret []byte, others ...[]byte) (*Sealer, error) {
	sealer, err := session.NewSealer("ticket", secret, others...)
	if err != nil {
		return nil, err
	}
	passes, err := session.NewSealer("pass", secret, others...)
	if err != nil {
		return nil, err
	}
	return &Sealer{sealer, passes}, nil
}

// Seal writes a ticket for an address and a generation.
func (s *Sealer) Seal(a session.Address, gen session.Generation) string {
	plain, err := json.Marshal(Ticket{Address: a, Gen: gen, Expires: time.Now().Add(ticketLife).Unix()})
	if err != nil { // an Address holds only strings and valid raw ids
		panic("relay: an address that cannot be encoded: " + err.Error())
	}
	return s.sealer.Seal(plain)
}

// Open reads a ticket. One that was not sealed with this secret, was changed, or
// has expired is Invalid.
func (s *Sealer) Open(sealed string) (Ticket, error) {
	plain, ok := s.sealer.Open(sealed)
	if !ok {
		return Ticket{}, session.Errorf(session.Invalid, "a ticket was not sealed here, or was changed")
	}
	var t Ticket
	if json.Unmarshal(plain, &t) != nil {
		return Ticket{}, session.Errorf(session.Invalid, "a ticket holds something else")
	}
	if time.Now().Unix() > t.Expires {
		return Ticket{}, session.Errorf(session.Invalid, "a ticket of session %s has expired", t.Session)
	}
	return t, nil
}

// hashToken is what the store keeps of a one-time token.
func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// newToken draws a one-time token: 256 random bits.
func newToken() string {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // never happens: crypto/rand crashes the program instead
	}
	return base64.RawURLEncoding.EncodeToString(b[:])
}
