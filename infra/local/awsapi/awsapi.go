// Package awsapi holds what the endpoints of this machine have of AWS's: ids, the form of
// refusals, and the wait for work in the background.
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

// NewID returns an id in the form of API Gateway's ids for connections, requests and
// messages. An id has 15 random characters and a "=".
func NewID() string {
	b := make([]byte, 11)
	_, _ = crand.Read(b) // never fails, see crypto/rand
	return base64.URLEncoding.EncodeToString(b)
}

// SourceIP returns the address that a request came from. For a unix socket it returns
// this machine's address.
func SourceIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "127.0.0.1"
	}
	return host
}

// Refuse answers with an error in API Gateway's own form: its member "message" holds text.
func Refuse(w http.ResponseWriter, status int, text string) {
	JSON(w, status, fmt.Appendf(nil, `{"message":%q}`, text))
}

// JSON answers with a body of JSON.
func JSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client that went away needs no answer.
	_, _ = w.Write(body)
}

// Wait returns when work is done, or with the error of ctx if that ends first.
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
