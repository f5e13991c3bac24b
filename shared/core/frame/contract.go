package frame

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Environment variables with which a runner is started.
const (
	EnvBox        = "DORMOUSE_BOX"
	EnvGeneration = "DORMOUSE_GENERATION"
	EnvToken      = "DORMOUSE_TOKEN"
	EnvPass       = "DORMOUSE_PASS" // the secret that the runner shows on its first connection; see PassHeader
	EnvRelayURL   = "DORMOUSE_RELAY_URL"
	EnvEra        = "DORMOUSE_ERA"   // a [wire.Era], or not set
	EnvRoots      = "DORMOUSE_ROOTS" // file with CA certificates, for a container image that has none
	EnvImage      = "DORMOUSE_IMAGE" // the [Image] of the box, as JSON, if its server runs from an image
)

// Image is the part of a container image's configuration that says what a container starts.
type Image struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"` // NAME=VALUE
}

// ExitUnreachable is the exit status of a runner that could not connect to the relay.
const ExitUnreachable = 4

// PassHeader is the HTTP header in which a runner shows its pass when it connects. The pass is a sealed
// text that names the box and expires, so the relay refuses strangers without a read of the store.
const PassHeader = "Dormouse-Pass"

// LateAfter is how much a runner's clock and Deliver.Sent may differ for the runner to execute a
// [Deliver] at once. If they differ by more, the runner first sends an [Ask].
const LateAfter = time.Second

// MaxQuestions is how many questions a server may ask a client at once, during one call.
const MaxQuestions = 100

// MaxTransfers is how many frames a runner may send in parts at the same time. The store keeps the
// parts of each frame under a number below MaxTransfers, so that a hostile runner cannot fill the
// store.
const MaxTransfers = 64

const maxDetail = 500

// Clip shortens a text that a runner or the relay has sent to 500 bytes, for a log line.
func Clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxDetail)], "") }

// RequestIDs returns the ids of the requests in a message or a batch, as the client
// wrote them. It returns none if raw is not JSON-RPC.
func RequestIDs(raw []byte) []json.RawMessage {
	msgs, _, _ := wire.ParseBody(raw) // a message that cannot be read has no ids
	var ids []json.RawMessage
	for _, m := range msgs {
		if m.Kind == wire.Request {
			ids = append(ids, bytes.Clone(m.ID))
		}
	}
	return ids
}
