package transport

import (
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// modernVersion reports whether a message is of the modern era, and returns the version
// that the client asks for. A message is modern if it names a version that is not of the
// legacy era, if the header names a modern version, or if it is server/discover.
func modernVersion(m wire.Message, header string) (requested string, modern bool) {
	named, _ := wire.String(wire.Lookup(m.Params, "_meta", wire.MetaProtocolVersion))
	switch {
	case named != "" && !wire.Legacy(named):
		return named, true
	case isModern(header), m.Kind == wire.Request && m.Method == wire.MethodDiscover:
		return header, true
	}
	return "", false
}

// anyModern reports whether one of the messages of a POST is of the modern era.
// initialize begins the legacy era, so for it the header does not count.
func anyModern(msgs []wire.Message, header string) bool {
	return slices.ContainsFunc(msgs, func(m wire.Message) bool {
		of := header
		if isInitialize(m) {
			of = ""
		}
		_, modern := modernVersion(m, of)
		return modern
	})
}

func isInitialize(m wire.Message) bool {
	return m.Kind == wire.Request && m.Method == wire.MethodInitialize
}

func initializeInBatch() error {
	return storage.Errorf(storage.Invalid, "initialize must not be part of a batch; send it alone")
}

func isModern(version string) bool { return version == wire.V20260728 }

// isNewer reports whether a version is newer than the legacy era.
func isNewer(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil && version > wire.V20251125
}

// unsupported returns the error that names the versions spoken here (MCP 2026-07-28,
// "Protocol Version Negotiation"). The versions of the legacy era make a modern client begin again with
// initialize.
func unsupported(requested string, supported []string) error {
	p := refusal(http.StatusBadRequest, storage.Invalid, wire.CodeUnsupportedVersion,
		"this protocol version is not spoken here; use one of the supported versions")
	p.rpc.Data = struct {
		Supported []string `json:"supported"`
		Requested string   `json:"requested"`
	}{supported, wire.Clip(requested)}
	return p
}
