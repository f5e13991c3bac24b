package local

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Connections returns the @connections API of this stage, as API Gateway's
// management endpoint serves it to functions:
//
//	POST   /<stage>/@connections/<id>   send the body as one text message
//	GET    /<stage>/@connections/<id>   connectedAt, lastActiveAt, identity
//	DELETE /<stage>/@connections/<id>   close the connection
//
// POST answers 200 when the message is queued; messages of one connection are sent
// in the order their posts arrived. Failures are those of the AWS SDK:
// GoneException 410 (not open any more, or not yet), PayloadTooLargeException 413
// (over [WebSocketLimits.Message]), LimitExceededException 429 (the client does not
// read and its buffer is full), BadRequestException 400 (no such id can exist).
// A request must carry a Signature Version 4, else 403; the signature itself is
// not verified: serve this on a unix socket that only this user can reach.
func (a *WebSocketAPI) Connections() http.Handler { return connectionsOf{a} }

// connectionsOf is the @connections API of several APIs on one endpoint. It cuts the path
// by hand: a message to a box is a request, of which a router would be a quarter.
type connectionsOf []*WebSocketAPI

// ServeHTTP finds the connection.
func (all connectionsOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	stage, resource, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	id, ok := strings.CutPrefix(resource, "@connections/")
	at := slices.IndexFunc(all, func(a *WebSocketAPI) bool { return a.cfg.Stage == stage })
	switch {
	case !ok || at < 0:
		fail(w, http.StatusForbidden, "ForbiddenException", "Forbidden")
	case !isSigned(r):
		fail(w, http.StatusForbidden, "MissingAuthenticationTokenException", "Missing Authentication Token")
	case !isGatewayID(id):
		fail(w, http.StatusBadRequest, "BadRequestException", "Invalid connectionId: "+id)
	default:
		all[at].onConnection(w, r, id)
	}
}

func (a *WebSocketAPI) onConnection(w http.ResponseWriter, r *http.Request, id string) {
	c, _ := a.find(id)
	switch r.Method {
	case http.MethodPost:
		a.post(w, r, c)
	case http.MethodGet:
		describe(w, c)
	case http.MethodDelete:
		remove(w, c)
	default:
		fail(w, http.StatusForbidden, "ForbiddenException", "Forbidden")
	}
}

// post gets c nil for a connection that is gone.
func (a *WebSocketAPI) post(w http.ResponseWriter, r *http.Request, c *wsConn) {
	limit := int64(a.limits.Message)
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		fail(w, http.StatusBadRequest, "BadRequestException", "The body could not be read")
		return
	case int64(len(data)) > limit:
		fail(w, http.StatusRequestEntityTooLarge, "PayloadTooLargeException", "Message too long")
		return
	case c == nil:
		gone(w)
		return
	}
	switch err := c.send(data); {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, errFull):
		fail(w, http.StatusTooManyRequests, "LimitExceededException", "The client's buffer is full")
	default:
		gone(w)
	}
}

func describe(w http.ResponseWriter, c *wsConn) {
	if c == nil {
		gone(w)
		return
	}
	type identity struct {
		SourceIP  string `json:"sourceIp"`
		UserAgent string `json:"userAgent"`
	}
	c.mu.Lock()
	last := c.lastActive
	c.mu.Unlock()
	body, err := json.Marshal(struct {
		ConnectedAt  time.Time `json:"connectedAt"`
		Identity     identity  `json:"identity"`
		LastActiveAt time.Time `json:"lastActiveAt"`
	}{milliseconds(c.connectedAt), identity{c.sourceIP, c.userAgent}, milliseconds(last)})
	if err != nil {
		fail(w, http.StatusInternalServerError, "InternalServerErrorException", textInternal)
		return
	}
	answerJSON(w, http.StatusOK, body)
}

func milliseconds(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

func remove(w http.ResponseWriter, c *wsConn) {
	if c == nil {
		gone(w)
		return
	}
	c.shut(closedByPost)
	w.WriteHeader(http.StatusNoContent)
}

// isSigned says whether the request carries the parts of a Signature Version 4.
func isSigned(r *http.Request) bool {
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	return ok && r.Header.Get("X-Amz-Date") != "" && strings.Contains(auth, "Credential=") &&
		strings.Contains(auth, "SignedHeaders=") && strings.Contains(auth, "Signature=")
}

// gone answers as AWS does, without a word beyond the type.
func gone(w http.ResponseWriter) { fail(w, http.StatusGone, "GoneException", "") }

// fail answers with an error in the form of the restJson1 protocol, from which
// AWS's SDKs make their error types.
func fail(w http.ResponseWriter, status int, kind, text string) {
	w.Header().Set("X-Amzn-ErrorType", kind)
	w.Header().Set("X-Amzn-RequestId", newGatewayID())
	body, err := json.Marshal(struct {
		Message string `json:"message,omitempty"`
	}{text})
	if err != nil {
		body = []byte("{}")
	}
	answerJSON(w, status, body)
}
