package storage

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
)

// Sealer encrypts and authenticates data (AES-256-GCM), such as the tickets of boxes and the requestState
// of modern clients. A box or client sends the data back, but can neither read nor change it. A Sealer
// has no state and is safe for concurrent use.
type Sealer struct {
	seals cipher.AEAD
	opens []cipher.AEAD // seals, and those of earlier secrets
}

// minSecret is the least length of a secret, in bytes.
const minSecret = 32

// NewSealer makes a Sealer for one purpose from a secret of at least 32 bytes. Data sealed for
// one purpose opens for no other, so all purposes may share the secret. The argument others has
// earlier secrets: the Sealer still opens data that was sealed with them. Errors: Invalid for a
// shorter secret.
func NewSealer(purpose string, secret []byte, others ...[]byte) (*Sealer, error) {
	s := &Sealer{}
	for _, secret := range append([][]byte{secret}, others...) {
		aead, err := newAEAD(purpose, secret)
		if err != nil {
			return nil, err
		}
		s.opens = append(s.opens, aead)
	}
	s.seals = s.opens[0]
	return s, nil
}

func newAEAD(purpose string, secret []byte) (cipher.AEAD, error) {
	if len(secret) < minSecret {
		return nil, Errorf(Invalid, "the secret that seals a %s has %d bytes; it needs %d or more", purpose, len(secret), minSecret)
	}
	key := sha256.Sum256(append([]byte("dormouse "+purpose+" v1\x00"), secret...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal returns plain in sealed form, as text (base64url).
func (s *Sealer) Seal(plain []byte) string { return s.SealFor(nil, plain) }

// SealFor is Seal for one owner: only OpenFor with the same owner opens the text.
func (s *Sealer) SealFor(owner, plain []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.seals.Seal(nil, nil, plain, owner))
}

// SealJSON returns v as JSON in sealed form. It panics if v has no form as JSON.
func (s *Sealer) SealJSON(v any) string {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false) // escapes would make some texts six times as long
	if err := e.Encode(v); err != nil {
		panic("storage: " + err.Error())
	}
	return s.Seal(plain.Bytes())
}

// OpenJSON decodes what SealJSON has sealed into what the argument into points to. It returns false
// where ok of Open is false.
func (s *Sealer) OpenJSON(sealed string, into any) bool {
	plain, ok := s.Open(sealed)
	return ok && json.Unmarshal(plain, into) == nil
}

// Open returns the data that was sealed. ok is false if the text was changed, or was sealed
// for another purpose or with a secret that this Sealer does not have.
func (s *Sealer) Open(sealed string) (plain []byte, ok bool) {
	plain, ok, _ = s.OpenFor(nil, sealed)
	return plain, ok
}

// OpenFor opens what SealFor has sealed for the same owner. The result old says that the data was
// sealed with an earlier secret, so the caller should seal it anew.
func (s *Sealer) OpenFor(owner []byte, sealed string) (plain []byte, ok, old bool) {
	box, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return nil, false, false
	}
	for i, aead := range s.opens {
		if plain, err := aead.Open(nil, nil, box, owner); err == nil {
			return plain, true, i > 0
		}
	}
	return nil, false, false
}
