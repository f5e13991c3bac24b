package resourceserver

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
)

const (
	maxKeys    = 64
	maxTried   = 4 // keys of an issuer that are tried for one token
	minModulus = 2048
	maxModulus = 8192 // bits; it would take long to verify a signature of a larger key
)

type key struct {
	id, algorithm string // from the issuer; "" if not given
	kind          string // such as "RSA" or "P-256"; see [algorithms]
	public        crypto.PublicKey
}

// fits reports whether the key may have signed a token with this algorithm and key id
// ("" for none).
func (k key) fits(algorithm, id string) bool {
	return k.kind == algorithms()[algorithm] && (k.algorithm == "" || k.algorithm == algorithm) && (id == "" || k.id == id)
}

// jwk has the fields of a JWK (RFC 7517, RFC 7518 §6) that are read.
type jwk struct {
	Type      string `json:"kty"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
	ID        string `json:"kid"`
	Curve     string `json:"crv"`
	N         string `json:"n"`
	E         string `json:"e"`
	X         string `json:"x"`
	Y         string `json:"y"`
}

// parseKeys reads a JWK set. It keeps only RSA keys of 2048 to 8192 bits, P-256, P-384, P-521 and
// Ed25519, and none for encryption.
func parseKeys(document []byte) ([]key, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(document, &set); err != nil {
		return nil, fmt.Errorf("the key set is not JSON: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the key set has %d keys; at most %d are read", len(set.Keys), maxKeys)
	}
	var keys []key
	for _, raw := range set.Keys {
		var j jwk
		if json.Unmarshal(raw, &j) != nil || j.Use != "" && j.Use != "sig" {
			continue
		}
		k := key{id: j.ID, algorithm: j.Algorithm}
		if k.kind, k.public = j.public(); k.public != nil {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// public returns the key and its kind, nil for an unsupported key.
func (j jwk) public() (kind string, _ crypto.PublicKey) {
	switch j.Type {
	case "RSA":
		n, e := number(j.N), number(j.E)
		if n == nil || n.BitLen() < minModulus || n.BitLen() > maxModulus || n.Bit(0) == 0 ||
			e == nil || e.BitLen() > 31 || e.Bit(0) == 0 || e.Int64() < 3 {
			return "", nil
		}
		return "RSA", &rsa.PublicKey{N: n, E: int(e.Int64())}
	case "EC":
		for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
			if name := curve.Params().Name; name == j.Curve {
				if p := j.point(curve); p != nil {
					return name, p
				}
			}
		}
	case "OKP":
		if x := decoded(j.X); j.Curve == "Ed25519" && len(x) == ed25519.PublicKeySize {
			return "Ed25519", ed25519.PublicKey(x)
		}
	}
	return "", nil
}

func (j jwk) point(curve elliptic.Curve) *ecdsa.PublicKey {
	size := (curve.Params().BitSize + 7) / 8
	x, y := decoded(j.X), decoded(j.Y)
	if len(x) != size || len(y) != size {
		return nil
	}
	p, err := ecdsa.ParseUncompressedPublicKey(curve, append(append([]byte{4}, x...), y...))
	if err != nil {
		return nil
	}
	return p
}

func number(text string) *big.Int {
	raw := decoded(text)
	if len(raw) == 0 || len(raw) > maxModulus/8+1 {
		return nil
	}
	return new(big.Int).SetBytes(raw)
}

func decoded(text string) []byte {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	return raw
}
