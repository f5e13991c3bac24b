package sessions

import (
	"bytes"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// FailureOf reports whether the response to a tools/call says that the call has failed. response
// must be valid JSON. why is the reason, for a log line. If show is false, why has no text of the
// server.
func FailureOf(response []byte, show bool) (failed bool, why string) {
	if e := wire.Lookup(response, "error"); e != nil {
		data := wire.Lookup(e, "data") // only errors of Dormouse have one of these keys
		if wire.Lookup(data, metaConnect) != nil {
			return true, notAsked
		}
		why, _ = wire.String(wire.Lookup(e, "message"))
		if show && why != "" || wire.Lookup(data, "phase") != nil || wire.Lookup(data, "dormouse/held") != nil {
			return true, why
		}
		return true, "the server answered with the error " + string(wire.Lookup(e, "code"))
	}
	// For a long result, this search is faster than Lookup.
	if !bytes.Contains(response, []byte(`"isError"`)) || string(wire.Lookup(response, "result", "isError")) != "true" {
		return false, ""
	}
	switch {
	case wire.Lookup(response, "result", "_meta", metaConnect) != nil:
		return true, notAsked
	case show:
		for item := range wire.Elements(wire.Lookup(response, "result", "content")) {
			why, _ = wire.String(wire.Lookup(item, "text"))
			break // the first item says it
		}
	}
	return true, why
}

// notAsked replaces, in log lines, the message that [use.unconnected] gives the client. That message has
// addresses of pages, which are only for the user.
const notAsked = "the caller has not connected an account at a third party that the server needs"
