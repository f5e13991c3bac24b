package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// A key is dm_<id>_<secret>. The id has 40 random bits; it finds the record and may be shown. The
// secret has 160 random bits. A ticket is dt_<secret>. The beginnings let programs recognise keys
// and tickets, for example scanners for published secrets.
const (
	keyPrefix    = "dm_"
	ticketPrefix = "dt_"
	idChars      = 8
	secretChars  = 32
)

const alphabet = "abcdefghijklmnopqrstuvwxyz234567"

// random returns random characters, five bits each; n is a multiple of eight.
func random(n int) string {
	raw := make([]byte, n*5/8)
	_, _ = rand.Read(raw) // Read never fails
	return base32.NewEncoding(alphabet).EncodeToString(raw)
}

// IsKey reports whether a text begins like an API key.
func IsKey(text string) bool { return strings.HasPrefix(text, keyPrefix) }

func newKey() (key, id string) {
	id = random(idChars)
	return keyPrefix + id + "_" + random(secretChars), id
}

// parseKey returns the id of a string that has the form of a key. For any other string, ok is false.
func parseKey(key string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(key, keyPrefix)
	id, secret, cut := strings.Cut(rest, "_")
	return id, ok && cut && isID(id) && isRandom(secret, secretChars)
}

func isID(s string) bool { return isRandom(s, idChars) }

func newTicket() string { return ticketPrefix + random(secretChars) }

func isTicket(s string) bool {
	secret, ok := strings.CutPrefix(s, ticketPrefix)
	return ok && isRandom(secret, secretChars)
}

func isRandom(s string, n int) bool { return len(s) == n && strings.Trim(s, alphabet) == "" }

// hashOf returns the hash under which a ticket is stored. The bits of a ticket are random, so
// a slower hash is unnecessary.
func hashOf(ticket string) string {
	sum := sha256.Sum256([]byte(ticket))
	return hex.EncodeToString(sum[:])
}
