// Package awsapi has what the local endpoints have in common with AWS: the form of ids and of
// errors.
package awsapi

import (
	"context"
	crand "crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// NewID returns an id in the form in which API Gateway identifies connections, requests and
// messages: 15 random characters and a "=".
func NewID() string {
	b := make([]byte, 11)
	_, _ = crand.Read(b) // never fails; see crypto/rand
	return base64.URLEncoding.EncodeToString(b)
}

// SourceIP returns the address that a request came from, or 127.0.0.1 for a unix socket.
func SourceIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "127.0.0.1"
	}
	return host
}

// Refuse responds with an error in the form of API Gateway: a JSON object whose member "message"
// is text.
func Refuse(w http.ResponseWriter, status int, text string) {
	JSON(w, status, fmt.Appendf(nil, `{"message":%q}`, text))
}

// JSON sends a response whose body is JSON already.
func JSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error means that the client is gone.
	_, _ = w.Write(body)
}

// Wait waits until work is done. If ctx ends first, it returns the error of ctx.
func Wait(ctx context.Context, work *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		work.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
