package session

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
)

// Sealer seals what strangers carry for us (AES-256-GCM), so that they can neither
// read nor change it: tickets in boxes, the state of a call in rounds at a modern
// client. It has no state and is safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// minSecret is the least length of a secret, in bytes.
const minSecret = 32

// NewSealer makes a Sealer for one purpose from a secret of at least 32 bytes
// (Invalid if shorter). What was sealed for one purpose opens for no other, so that
// all may share the secret.
func NewSealer(secret []byte, purpose string) (*Sealer, error) {
	if len(secret) < minSecret {
		return nil, Errorf(Invalid, "the secret that seals a %s has %d bytes; it needs %d or more", purpose, len(secret), minSecret)
	}
	key := sha256.Sum256(append([]byte("dormouse "+purpose+" v1\x00"), secret...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &Sealer{aead}, nil
}

// Seal returns plain as text (base64url) that only [Sealer.Open] reads.
func (s *Sealer) Seal(plain []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, plain, nil))
}

// Open returns what was sealed; ok is false for what was not sealed with this
// secret and for this purpose, or was changed.
func (s *Sealer) Open(sealed string) (plain []byte, ok bool) {
	box, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return nil, false
	}
	plain, err = s.aead.Open(nil, nil, box, nil)
	return plain, err == nil
}
