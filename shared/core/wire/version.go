package wire

import "slices"

// The published protocol versions.
const (
	// V20241105 has HTTP+SSE with two endpoints.
	V20241105 = "2024-11-05"
	// V20250326 brings Streamable HTTP and batches. A request without a version header
	// counts as this version.
	V20250326 = "2025-03-26"
	// V20250618 brings elicitation and the version header, and drops batches.
	V20250618 = "2025-06-18"
	// V20251125 brings polling: a server may close a stream, and the client comes back. It
	// is the newest version of the legacy era.
	V20251125 = "2025-11-25"
	// V20260728 begins the modern era: no handshake, no sessions.
	V20260728 = "2026-07-28"
)

// Legacy reports whether version is one of the four of the legacy era, which
// begin with initialize.
func Legacy(version string) bool {
	return slices.Contains(LegacyVersions(), version)
}

// Negotiate returns the version that answers an initialize: requested if it is legacy,
// else the newest legacy one. initialize never selects the modern era, and never fails
// because of the version (MCP 2025-11-25, basic/lifecycle, "Version Negotiation").
func Negotiate(requested string) string {
	if Legacy(requested) {
		return requested
	}
	return V20251125
}

// Era says which eras a server speaks.
type Era string

// The eras of a server.
const (
	LegacyOnly Era = "legacy"
	ModernOnly Era = "modern" // it has refused initialize
	DualEra    Era = "dual"   // it speaks the modern era, and has not refused initialize
)

// LegacyVersions returns the versions of the legacy era, newest first. The slice
// belongs to the caller.
func LegacyVersions() []string {
	return []string{V20251125, V20250618, V20250326, V20241105}
}
