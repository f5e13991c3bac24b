package frame

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Environment variables that the host sets for a runner.
const (
	EnvBox        = "DORMOUSE_BOX"
	EnvGeneration = "DORMOUSE_GENERATION"
	EnvToken      = "DORMOUSE_TOKEN"
	EnvPass       = "DORMOUSE_PASS" // the first pass
	EnvRelayURL   = "DORMOUSE_RELAY_URL"
	EnvEra        = "DORMOUSE_ERA"   // EraModern, EraLegacy, EraDual, or not set
	EnvRoots      = "DORMOUSE_ROOTS" // file with certificates of authorities, for an image that has none
	EnvImage      = "DORMOUSE_IMAGE" // the [Image] of the box, as JSON, if a server brought it
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

// ExitUnreachable is the exit status of a runner that could not reach the host. If its
// box was still starting, the host tells the waiting clients so.
const ExitUnreachable = 4

// PassHeader is the HTTP header in which a runner shows its pass when it connects.
const PassHeader = "Dormouse-Pass"

// LateAfter is the age up to which a runner executes a deliver at once, by the clocks of
// the two ends. It asks the host about an older one.
const LateAfter = time.Second

// MaxQuestions is how many questions one delivery may ask in a round.
const MaxQuestions = 100

// MaxTransfers is how many long frames one runner may have under way. The name of a
// frame begins with its place, a number below MaxTransfers. The host keeps parts by
// place, so a box cannot make it keep more frames than this.
const MaxTransfers = 64

// maxDetail is how many bytes of a text from the other end go to the log.
const maxDetail = 500

// Clip cuts a text from the other end to maxDetail bytes, for a log line.
func Clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxDetail)], "") }

// RequestIDs returns the ids of the requests in a message or a batch, as the client
// wrote them. It returns none if raw is not JSON-RPC.
func RequestIDs(raw []byte) []json.RawMessage {
	msgs, _, _ := wire.ParseBody(raw) // what cannot be read has none
	var ids []json.RawMessage
	for _, m := range msgs {
		if m.Kind == wire.Request {
			ids = append(ids, bytes.Clone(m.ID))
		}
	}
	return ids
}
