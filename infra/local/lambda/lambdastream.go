package lambda

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"net/http"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// streamChunk is how much of an answer goes into one message of an event stream.
const streamChunk = 64 << 10

// stream invokes a function and passes on what it writes while it does. As on Lambda,
// a caller that goes away does not end the invocation.
func (a *API) stream(w http.ResponseWriter, r *http.Request, kind, name string, payload []byte) {
	switch kind {
	case "", "RequestResponse":
	case "DryRun":
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		awsapi.Fail(w, http.StatusBadRequest, "InvalidParameterValueException", "Unknown invocation type")
		return
	}
	inv, err := a.cfg.Invoker.Invoke(context.WithoutCancel(r.Context()), name, payload)
	if err != nil {
		a.answer(w, nil, nil, err)
		return
	}
	defer func() { _ = inv.Body.Close() }()
	w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
	w.Header().Set("X-Amz-Executed-Version", "$LATEST")
	flush := http.NewResponseController(w)
	send := func(event, content string, payload []byte) {
		// Who has gone needs no answer, and the function writes on.
		_, _ = w.Write(streamFrame(event, content, payload))
		_ = flush.Flush()
	}
	failed := inv.Failed
	for buf := make([]byte, streamChunk); failed == nil; {
		n, err := inv.Body.Read(buf)
		if n > 0 {
			send("PayloadChunk", "application/octet-stream", buf[:n])
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.As(err, &failed) {
			failed = &FunctionError{Function: name, Type: ErrorResponse, Message: err.Error()}
		}
	}
	end := map[string]string{}
	if failed != nil {
		end["ErrorCode"], end["ErrorDetails"] = failed.Type, failed.Message
	}
	body, _ := json.Marshal(end) // strings always encode
	send("InvokeComplete", "application/json", body)
}

// streamFrame is a message of an event stream of AWS: lengths, their checksum,
// headers, payload, checksum of all.
func streamFrame(event, content string, payload []byte) []byte {
	var headers []byte
	for _, h := range [][2]string{{":event-type", event}, {":content-type", content}, {":message-type", "event"}} {
		headers = append(append(headers, byte(len(h[0]))), h[0]...)
		headers = binary.BigEndian.AppendUint16(append(headers, 7), uint16(len(h[1])))
		headers = append(headers, h[1]...)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(headers)+len(payload)+16))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(headers)))
	frame = binary.BigEndian.AppendUint32(frame, crc32.ChecksumIEEE(frame))
	frame = append(append(frame, headers...), payload...)
	return binary.BigEndian.AppendUint32(frame, crc32.ChecksumIEEE(frame))
}
