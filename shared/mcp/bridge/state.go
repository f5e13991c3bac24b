package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// State is what Dormouse must remember between two rounds of a call. The client carries
// it, sealed, as requestState. It is valid only for the caller whose session it names, for
// the same method and params, until it expires.
//
// A client may use it more than once: Dormouse takes only the first answer to a question,
// and reading a log again does no harm.
type State struct {
	// Session is the session of the caller; its ID is computed from the caller.
	Session storage.ID `json:"s"`
	// Stream is the stream of the call that waits. It is "" if the call has ended and must
	// be made again, because the server wants its user to open URLs first.
	Stream storage.StreamID `json:"d,omitempty"`
	// From is the index before the first question. Seen is the index of the last event
	// that the client has got, or that Dormouse has answered for it.
	From storage.Index `json:"f,omitempty"`
	Seen storage.Index `json:"a,omitempty"`
	// Asked maps the keys of the input requests to their methods. IDs maps the keys to the
	// server's ids where the two differ.
	Asked map[string]string `json:"q"`
	IDs   map[string]string `json:"i,omitempty"`
	// Passed means that the server itself answered with the input requests, and so the
	// call has ended. The client makes it again with the answers, and Dormouse adds the
	// server's own state, Own (nil for none).
	Passed bool            `json:"p,omitempty"`
	Own    json.RawMessage `json:"o,omitempty"`

	Digest string `json:"h"` // of the request, see [Request.Digest]
	Round  int    `json:"r"` // number of rounds so far
	// Expires is in Unix seconds.
	Expires int64 `json:"e"`
}

// NewSealer makes the Sealer for states from a secret of at least 32 bytes. It may be the
// secret of the tickets. The Sealer also opens states that were sealed with the others.
// Errors: storage.Invalid for a shorter secret.
func NewSealer(secret []byte, others ...[]byte) (*storage.Sealer, error) {
	return storage.NewSealer("request state", secret, others...)
}

func (s State) id(key string) string {
	if id, ok := s.IDs[key]; ok {
		return id
	}
	return key
}

// key returns the key of an earlier question, by its id. ok is false for other questions.
func (s State) key(id string) (key string, ok bool) {
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
	if err != nil { // it holds strings and numbers only
		panic("bridge: a state that cannot be encoded: " + err.Error())
	}
	return plain
}

// Resume reads the opened state of a request. It checks that the state belongs to the caller
// and the request, and has not expired. Errors are *[wire.Error] with
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

// Digest returns a hash of everything that must be the same in every round. That is the
// method, and the params without the members that differ by design. The order of members
// and white space do not matter.
func (r Request) Digest() string {
	params, _ := objectOf(r.Params)
	hash := sha256.New()
	hash.Write(canonical(text(r.Method)))
	hash.Write(canonical(params.without(inputResponses, requestState, "_meta").encode()))
	return hex.EncodeToString(hash.Sum(nil))
}
