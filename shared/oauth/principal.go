package oauth

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// maxPrincipal is how long a principal may be, in bytes, as for keys.
const maxPrincipal = 128

// principal names a subject of an issuer. A subject that is too long, or has other
// characters than visible ones of ASCII, is named by its hash; so is one that looks like
// that.
func principal(name, subject string) string {
	odd := func(c rune) bool { return c <= ' ' || c > '~' }
	if len(name)+1+len(subject) <= maxPrincipal && !strings.HasPrefix(subject, "#") && !strings.ContainsFunc(subject, odd) {
		return name + ":" + subject
	}
	sum := sha256.Sum256([]byte(subject))
	return name + ":#" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}
