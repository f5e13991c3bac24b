package wire

import (
	"fmt"
	"strings"
)

// Clip shortens a text that a client has sent, for a log line or an error: to its first 64 bytes and its length.
func Clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:most], ""), len(s))
}
