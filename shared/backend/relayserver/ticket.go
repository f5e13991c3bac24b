package relayserver

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/segmentio/encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Ticket says where a box may write the events of one request. A runner gets it in sealed form, and
// sends it with the events; see package relay.
type Ticket struct {
	storage.Address
	Gen     storage.Generation `json:"g"`
	Expires int64              `json:"x"` // Unix seconds
}

// ticketLife is longer than a request may take.
const ticketLife = 7 * 24 * time.Hour

// Sealer seals and opens tickets and passes. It has no state and is safe for concurrent use.
type Sealer struct{ sealer, passes *storage.Sealer }

// NewSealer returns a Sealer that seals with secret, which has at least 32 bytes (Invalid
// if it is shorter). The Sealer also opens tickets and passes that were sealed with the
// other secrets. A program with the secret can write tickets, so the secret stays in the
// secret store and never gets into a box.
func NewSealer(secret []byte, others ...[]byte) (*Sealer, error) {
	sealer, err := storage.NewSealer("ticket", secret, others...)
	if err != nil {
		return nil, err
	}
	passes, err := storage.NewSealer("pass", secret, others...)
	if err != nil {
		return nil, err
	}
	return &Sealer{sealer, passes}, nil
}

// Seal returns a ticket for an address and a generation. The ticket is valid for 7 days.
func (s *Sealer) Seal(a storage.Address, gen storage.Generation) string {
	plain, err := json.Marshal(Ticket{Address: a, Gen: gen, Expires: time.Now().Add(ticketLife).Unix()})
	if err != nil { // an Address holds only strings and valid raw ids, so this cannot fail
		panic("relay: an address that cannot be encoded: " + err.Error())
	}
	return s.sealer.Seal(plain)
}

// Open reads a ticket. It returns Invalid if the ticket was not sealed with one of the
// Sealer's secrets, was changed, or has expired.
func (s *Sealer) Open(sealed string) (Ticket, error) {
	plain, ok := s.sealer.Open(sealed)
	if !ok {
		return Ticket{}, storage.Errorf(storage.Invalid, "a ticket was not sealed here, or was changed")
	}
	var t Ticket
	if json.Unmarshal(plain, &t) != nil {
		return Ticket{}, storage.Errorf(storage.Invalid, "a ticket holds something else")
	}
	if time.Now().Unix() > t.Expires {
		return Ticket{}, storage.Errorf(storage.Invalid, "a ticket of session %s has expired", t.Session)
	}
	return t, nil
}

// hashToken returns the hash of a one-time token. The box record has only the hash.
func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
