package sockets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// postWithin is how long a post without a deadline waits for room in the client's
// buffer.
const postWithin = 2 * time.Second

// Post implements storage.Poster for routes of this process. If the client does not read,
// it waits some time for room.
func (a *API) Post(ctx context.Context, conn string, data []byte) error {
	if len(data) > a.limits.Message {
		return storage.Errorf(storage.TooLarge, "a message of %d bytes is over the limit of %d", len(data), a.limits.Message)
	}
	c, ok := a.find(conn)
	if !ok {
		return storage.Errorf(storage.Closed, "the connection is gone")
	}
	ctx, cancel := context.WithTimeout(ctx, postWithin)
	defer cancel()
	switch err := c.send(ctx, bytes.Clone(data)); {
	case errors.Is(err, errFull):
		return storage.Errorf(storage.Unavailable, "the client does not read what it is sent")
	case err != nil:
		return storage.Errorf(storage.Closed, "the connection is gone")
	}
	return nil
}

// Broadcast sends a message to all connections, and does not wait for any. A connection
// without room for it does not get it.
func (a *API) Broadcast(data []byte) {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.conns))
	a.mu.Unlock()
	for _, c := range all {
		_ = c.enqueue(data) // the connection may have ended
	}
}

// Disconnect closes a connection. [Clients] implements storage.Clients with it.
func (a *API) Disconnect(conn string) {
	if c, ok := a.find(conn); ok {
		c.shut(closedByPost)
	}
}

// Clients implements storage.Clients on the connections of an API.
type Clients struct{ *API }

// Close implements storage.Clients.
func (c Clients) Close(_ context.Context, conn string) error {
	c.Disconnect(conn)
	return nil
}

// Connections is the @connections API of several APIs on one endpoint, as API Gateway's
// management endpoint serves it to functions. The stage selects the API:
//
//	POST   /<stage>/@connections/<id>   send the body as one text message
//	GET    /<stage>/@connections/<id>   connectedAt, lastActiveAt, identity
//	DELETE /<stage>/@connections/<id>   close the connection
//
// POST answers 200 when the message is queued. Messages of one connection are sent in the
// order in which their posts arrived.
//
// Errors are those of the AWS SDK: GoneException 410 (closed, or not open yet) and
// PayloadTooLargeException 413 (over [Limits.Message]). LimitExceededException 429 means
// that the client does not read and its buffer is full. BadRequestException 400 means
// that no such id can exist. A request without a Signature Version 4 gets 403.
// Connections does not verify the signature: its server must authenticate the caller.
type Connections []*API

// ServeHTTP implements http.Handler.
func (all Connections) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	stage, resource, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	id, ok := strings.CutPrefix(resource, "@connections/")
	at := slices.IndexFunc(all, func(a *API) bool { return a.cfg.Stage == stage })
	switch {
	case !ok || at < 0:
		awsapi.Fail(w, http.StatusForbidden, "ForbiddenException", "Forbidden")
	case !isSigned(r):
		awsapi.Fail(w, http.StatusForbidden, "MissingAuthenticationTokenException", "Missing Authentication Token")
	case !awsapi.IsID(id):
		awsapi.Fail(w, http.StatusBadRequest, "BadRequestException", "Invalid connectionId: "+id)
	default:
		all[at].onConnection(w, r, id)
	}
}

func (a *API) onConnection(w http.ResponseWriter, r *http.Request, id string) {
	c, open := a.find(id)
	switch {
	case r.Method == http.MethodPost:
		a.post(w, r, c)
	case r.Method != http.MethodGet && r.Method != http.MethodDelete:
		awsapi.Fail(w, http.StatusForbidden, "ForbiddenException", "Forbidden")
	case !open:
		gone(w)
	case r.Method == http.MethodGet:
		describe(w, c)
	default:
		c.shut(closedByPost)
		w.WriteHeader(http.StatusNoContent)
	}
}

// post sends a message. c is nil for a connection that is gone.
func (a *API) post(w http.ResponseWriter, r *http.Request, c *wsConn) {
	limit := int64(a.limits.Message)
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		awsapi.Fail(w, http.StatusBadRequest, "BadRequestException", "The body could not be read")
		return
	case int64(len(data)) > limit:
		awsapi.Fail(w, http.StatusRequestEntityTooLarge, "PayloadTooLargeException", "Message too long")
		return
	case c == nil:
		gone(w)
		return
	}
	switch err := c.enqueue(data); {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, errFull):
		awsapi.Fail(w, http.StatusTooManyRequests, "LimitExceededException", "The client's buffer is full")
	default:
		gone(w)
	}
}

func describe(w http.ResponseWriter, c *wsConn) {
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
	}{milliseconds(c.ConnectedAt), identity{c.SourceIP, c.UserAgent}, milliseconds(last)})
	if err != nil {
		awsapi.Fail(w, http.StatusInternalServerError, "InternalServerErrorException", "Internal server error")
		return
	}
	awsapi.JSON(w, http.StatusOK, body)
}

func milliseconds(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// isSigned reports whether the request has the parts of a Signature Version 4.
func isSigned(r *http.Request) bool {
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	return ok && r.Header.Get("X-Amz-Date") != "" && strings.Contains(auth, "Credential=") &&
		strings.Contains(auth, "SignedHeaders=") && strings.Contains(auth, "Signature=")
}

// gone answers as AWS does, with only the error type.
func gone(w http.ResponseWriter) { awsapi.Fail(w, http.StatusGone, "GoneException", "") }
