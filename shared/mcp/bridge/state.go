package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// State is what must be known of a call when its client sends the request again with answers. The
// client gets the State, sealed, as requestState, and sends it back. A State is valid only for the
// same caller, method and params, until it expires.
//
// A client may send a State more than once: only the first answer to a question counts.
type State struct {
	// Session is the session that Dormouse keeps for the caller. Its ID is computed from the caller.
	Session storage.ID `json:"s"`
	// Stream is the stream of the call, which waits for the answers. Stream is "" if the call has
	// ended and must be made again, because the server wants the user to open URLs first.
	Stream storage.StreamID `json:"d,omitempty"`
	// From is the index of the event before the first question. Seen is the index of the last
	// event of the stream that was handled.
	From storage.Index `json:"f,omitempty"`
	Seen storage.Index `json:"a,omitempty"`
	// Asked maps the keys in inputRequests to the methods of the questions. IDs maps a key to the
	// id that the server has given the question, if key and id differ.
	Asked map[string]string `json:"q"`
	IDs   map[string]string `json:"i,omitempty"`
	// Passed means that the server itself answered with inputRequests, which ended the call. When
	// the client sends the request again, the server gets its own requestState, Own (nil for
	// none), with the answers.
	Passed bool            `json:"p,omitempty"`
	Own    json.RawMessage `json:"o,omitempty"`

	Digest  string `json:"h"` // the result of [Request.Digest]
	Round   int    `json:"r"` // which request this is, if the call must be made again: 1 for the second
	Expires int64  `json:"e"` // Unix seconds
}

// NewSealer returns the Sealer for States. [storage.NewSealer] explains the arguments and the error.
func NewSealer(secret []byte, others ...[]byte) (*storage.Sealer, error) {
	return storage.NewSealer("request state", secret, others...)
}

func (s State) id(key string) string {
	if id, ok := s.IDs[key]; ok {
		return id
	}
	return key
}

// Key returns the key of the question with this id. ok is false if the client was not asked it before.
func (s State) Key(id string) (key string, ok bool) {
	for key := range s.Asked {
		if s.id(key) == id {
			return key, true
		}
	}
	return "", false
}

// Encode returns a state as JSON, to be sealed.
func (s State) Encode() []byte {
	plain, err := json.Marshal(s)
	if err != nil { // a State holds strings and numbers only, so this cannot happen
		panic("bridge: a state that cannot be encoded: " + err.Error())
	}
	return plain
}

// Resume reads the State that came with a request; plain is its unsealed JSON. It checks that the
// State belongs to the caller and the request, and has not expired. Errors are *[wire.Error] with
// [wire.CodeInvalidParams].
func (r Request) Resume(plain []byte, caller storage.ID, now time.Time) (State, error) {
	var s State
	switch err := json.Unmarshal(plain, &s); {
	case err != nil, s.Session != caller:
		return State{}, BadState()
	case now.Unix() > s.Expires:
		return State{}, invalid("params.%s has expired; send the request anew, without it", requestState)
	case s.Digest != r.Digest():
		return State{}, invalid("params.%s is of another request; send it with the params it was given for", requestState)
	}
	return s, nil
}

// BadState returns the error for a request state of another caller, or one that Dormouse did
// not make.
func BadState() *wire.Error {
	return invalid("params.%s is not one that was given to this caller; send the request anew, without it", requestState)
}

// Digest returns a hash of what must be the same when a client sends a request again with answers: the
// method, and the params without inputResponses, requestState and _meta. The order of members and
// white space do not matter.
func (r Request) Digest() string {
	params, _ := objectOf(r.Params)
	hash := sha256.New()
	hash.Write(canonical(text(r.Method)))
	hash.Write(canonical(params.without(inputResponses, requestState, "_meta").encode()))
	return hex.EncodeToString(hash.Sum(nil))
}
