package resourceserver

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// maxPrincipal is the longest principal, in bytes, as for API keys.
const maxPrincipal = 128

// principal returns the principal for a subject of an issuer: name, ":" and the subject. A hash
// replaces a subject that is too long, has other characters than visible ASCII, or begins with "#".
// Only a hash begins with "#".
func principal(name, subject string) string {
	odd := func(c rune) bool { return c <= ' ' || c > '~' }
	if len(name)+1+len(subject) <= maxPrincipal && !strings.HasPrefix(subject, "#") && !strings.ContainsFunc(subject, odd) {
		return name + ":" + subject
	}
	sum := sha256.Sum256([]byte(subject))
	return name + ":#" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}
