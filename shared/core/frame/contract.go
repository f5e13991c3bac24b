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
	EnvPass       = "DORMOUSE_PASS" // the pass with which the runner connects first; see PassHeader
	EnvRelayURL   = "DORMOUSE_RELAY_URL"
	EnvEra        = "DORMOUSE_ERA"   // EraModern, EraLegacy, EraDual, or not set
	EnvRoots      = "DORMOUSE_ROOTS" // file with certificates of authorities, for an image that has none
	EnvImage      = "DORMOUSE_IMAGE" // the [Image] of the box, as JSON, if its server runs from an image
)

// Image says what a container of an image starts, in the words of the image's configuration.
type Image struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"` // NAME=VALUE
}

// The eras that a server may be found to speak.
const (
	EraModern = "modern" // and no other
	EraLegacy = "legacy" // and no other
	EraDual   = "dual"
)

// ExitUnreachable is the exit status of a runner that could not connect to the relay. If its
// box was still starting, the waiting clients get an error that says so.
const ExitUnreachable = 4

// PassHeader is the HTTP header in which a runner shows its pass when it connects.
const PassHeader = "Dormouse-Pass"

// LateAfter is the age, by the clocks of both ends, up to which a runner executes a [Deliver] at once.
// For an older one it first sends an [Ask].
const LateAfter = time.Second

// MaxQuestions is how many questions one delivery may ask in a round.
const MaxQuestions = 100

// MaxTransfers is how many frames that are cut into parts one runner may be sending. The name of such a
// frame begins with a number below MaxTransfers, by which the parts are stored. So a hostile runner
// cannot fill the store with more frames than this.
const MaxTransfers = 64

// maxDetail is how many bytes of a text from the other end go to the log.
const maxDetail = 500

// Clip cuts a text from the other end to maxDetail bytes, for a log line.
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
