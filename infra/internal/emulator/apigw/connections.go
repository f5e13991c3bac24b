package apigw

import (
	"io"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Connections has WebSocket APIs by stage. It serves their @connections API, as API Gateway's
// management endpoint serves it to functions:
//
//	POST   /<stage>/@connections/<id>   send the body as one text message
//	DELETE /<stage>/@connections/<id>   close the connection
//
// POST answers 200 when the message is queued. Messages of one connection are sent in the
// order in which their posts arrived.
//
// Errors are those of the AWS SDK. GoneException 410 means that the connection is closed, or not
// open yet, and PayloadTooLargeException 413 that the message is too long.
// LimitExceededException 429 means that the client does not read and its buffer is full.
// BadRequestException 400 means that no such id can exist. A request without a Signature
// Version 4 gets 403. Connections does not verify the signature: the server that serves it must
// authenticate callers.
type Connections map[string]*sockets.API

// ServeHTTP implements http.Handler.
func (all Connections) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	stage, resource, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	id, ok := strings.CutPrefix(resource, "@connections/")
	api := all[stage]
	switch {
	case !ok || api == nil:
		aws.Fail(w, http.StatusForbidden, "ForbiddenException", "Forbidden")
	case !isSigned(r):
		aws.Fail(w, http.StatusForbidden, "MissingAuthenticationTokenException", "Missing Authentication Token")
	case !aws.IsID(id):
		aws.Fail(w, http.StatusBadRequest, "BadRequestException", "Invalid connectionId: "+id)
	case r.Method == http.MethodPost:
		post(w, r, api, id)
	case r.Method == http.MethodDelete:
		api.Disconnect(id)
		w.WriteHeader(http.StatusNoContent)
	default:
		aws.Fail(w, http.StatusForbidden, "ForbiddenException", "Forbidden")
	}
}

func post(w http.ResponseWriter, r *http.Request, api *sockets.API, id string) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		aws.Fail(w, http.StatusBadRequest, "BadRequestException", "The body could not be read")
		return
	}
	switch storage.CodeOf(api.Post(r.Context(), id, data)) {
	case "":
		w.WriteHeader(http.StatusOK)
	case storage.TooLarge:
		aws.Fail(w, http.StatusRequestEntityTooLarge, "PayloadTooLargeException", "Message too long")
	case storage.Unavailable:
		aws.Fail(w, http.StatusTooManyRequests, "LimitExceededException", "The client's buffer is full")
	default:
		aws.Fail(w, http.StatusGone, "GoneException", "") // AWS sends no message with this error
	}
}

// isSigned reports whether the request has the parts of a Signature Version 4.
func isSigned(r *http.Request) bool {
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	return ok && r.Header.Get("X-Amz-Date") != "" && strings.Contains(auth, "Credential=") &&
		strings.Contains(auth, "SignedHeaders=") && strings.Contains(auth, "Signature=")
}
