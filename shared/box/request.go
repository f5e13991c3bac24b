package box

import (
	"container/list"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// clientID identifies a client's request: its session, and the [idKey] of its id.
type clientID struct {
	session *session
	key     string
}

type request struct {
	number int64
	order  int64           // place in the order in which the box got the requests
	id     json.RawMessage // the id, as the client wrote it
	token  json.RawMessage // the client's progress token, nil for none
	method string
	stream *stream
	passed *list.Element // the request's element in conversation.passed; nil until the request was sent to the process
	timer  *time.Timer   // ends the request at its deadline, nil for none
	due    time.Time     // when timer fires
	left   time.Duration // how much time is left, while asked is not 0 and the timer stands still
	asked  int           // how many of its questions are open
	before written       // how much the process had written when it was sent the request
	given  handed        // how the request was sent to the process
	broken bool          // the process has sent a response that cannot be read

	modern  bool            // the client speaks 2026-07-28, so the request has the form of that version
	line    []byte          // the request in the form of earlier versions, kept if it may be sent again
	sent    int64           // the number under which the process knows the request
	isTask  bool            // the box has turned the request into an MCP task
	taskID  json.RawMessage // id of the task, nil until the process has named it
	retries int             // how often the process has asked to get the request again
}

type handed struct {
	line  []byte // the request, before the protocol translated it
	at    int64  // how many bytes had been queued for the process before line
	again bool   // an earlier process was sent the request, and had not read it
}

// question is a request of the server to the client, which the client has not answered yet.
type question struct {
	visible string // id the client sees
	id      json.RawMessage
	token   json.RawMessage // the server's progress token, nil for none
	order   int64
	session *session // the session whose client is asked; nil if the process has only one session
	call    *request // the client's request to which the question belongs, nil for none
	timer   *time.Timer
	due     time.Time // when timer fires
}

// stream returns the stream on which the question was sent. For a process with only one session, nil
// means the standalone stream.
func (q *question) stream() *stream {
	switch {
	case q.call != nil:
		return q.call.stream
	case q.session != nil:
		return &stream{session: q.session}
	default:
		return nil
	}
}

// idKey returns a key that is equal for ids that are the same by [wire.SameID]. The key is "" for
// a value that is no id.
func idKey(id json.RawMessage) string {
	if len(id) == 0 {
		return ""
	}
	if s, ok := wire.String(id); ok {
		if strings.ContainsRune(s, utf8.RuneError) {
			return "b" + string(id)
		}
		return "s" + s
	}
	if id[0] == '-' || id[0] >= '0' && id[0] <= '9' {
		return "n" + string(id)
	}
	return ""
}

func phaseOf(r *request) Phase {
	if r.method == wire.MethodToolsCall {
		return PhaseToolCall
	}
	return PhaseRuntime
}
