package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// State is what a call in several rounds has to remember between two of them. The
// client carries it as requestState. It is worth something only to the caller
// whose session it names, for the same method and params, until it expires.
//
// It may be used more than once: of the answers to a question the first counts,
// and to read a log again does no harm.
type State struct {
	// Session is the caller's own, which is computed of who it is.
	Session session.ID `json:"s"`
	// Stream of the call that waits. "" if the call is over and is to be made again
	// (the server wanted its user to visit something first).
	Stream session.StreamID `json:"d,omitempty"`
	// From is the index in front of the first question, Seen that of the last event
	// that the client was told or that was answered for it.
	From session.Index `json:"f,omitempty"`
	Seen session.Index `json:"a,omitempty"`
	// Asked maps the keys of the input requests to the methods, and IDs to what the
	// server calls them, where that is not the key.
	Asked map[string]string `json:"q"`
	IDs   map[string]string `json:"i,omitempty"`
	// Passed says that the server answered with the input requests itself: the call is
	// over, and made again with the answers and the state it gave, which is Own (nil
	// for none).
	Passed bool            `json:"p,omitempty"`
	Own    json.RawMessage `json:"o,omitempty"`

	Digest string `json:"h"` // of the request, see [Request.Digest]
	Round  int    `json:"r"` // how many rounds there were
	// Expires is in Unix seconds.
	Expires int64 `json:"e"`
}

// NewSealer makes what seals states from a secret of at least 32 bytes
// (session.Invalid if shorter). It may be the secret that tickets are sealed with. It
// also opens what was sealed with the others.
func NewSealer(secret []byte, others ...[]byte) (*session.Sealer, error) {
	return session.NewSealer("request state", secret, others...)
}

// id is what the server calls the question of a key.
func (s State) id(key string) string {
	if id, ok := s.IDs[key]; ok {
		return id
	}
	return key
}

// key is the key of a question that was asked already, by its id; ok is false for
// others.
func (s State) key(id string) (key string, ok bool) {
	for key := range s.Asked {
		if s.id(key) == id {
			return key, true
		}
	}
	return "", false
}

// Encode writes a state down, to be sealed.
func (s State) Encode() []byte {
	plain, err := json.Marshal(s)
	if err != nil { // it holds strings and numbers only
		panic("bridge: a state that cannot be encoded: " + err.Error())
	}
	return plain
}

// Resume reads the state a request brings, opened, and holds it to who asks and
// what is asked. Errors are *[wire.Error] with [wire.CodeInvalidParams].
func (r Request) Resume(plain []byte, caller session.ID, now time.Time) (State, error) {
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

// BadState is the error for a request state that is not the caller's, or that
// nobody here has made.
func BadState() *wire.Error {
	return invalid("params.%s is not one that was given to this caller; send the request anew, without it", requestState)
}

// Digest is of all that has to be the same in every round: the method and the
// params without what differs by design. The order of members does not matter, nor
// does white space.
func (r Request) Digest() string {
	params, _ := objectOf(r.Params)
	hash := sha256.New()
	// Numbers keep their digits.
	canonical := func(raw json.RawMessage) []byte {
		out, err := json.Marshal(numbers(raw))
		if err != nil { // it was JSON before
			panic("bridge: params that cannot be encoded: " + err.Error())
		}
		return out
	}
	hash.Write(canonical(text(r.Method)))
	hash.Write(canonical(params.without(inputResponses, requestState, "_meta").encode()))
	return hex.EncodeToString(hash.Sum(nil))
}
