package clients

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// TestGoClientSitsOutACallOfTwoHours runs go-sdk and the endpoint with its default limits
// in virtual time. No time is scaled. Virtual time works neither with a network nor with a
// file, so the client calls the handler directly, and the store is in memory.
func TestGoClientSitsOutACallOfTwoHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newPollServer(t, storagetest.NewMemory(), sessions.Limits{Pace: time.Second})
		var heard, progressed []string
		client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, &mcp.ClientOptions{
			//nolint:staticcheck // logging is how this server speaks on the standalone stream, deprecated from 2026-07-28 or not
			LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
				heard = append(heard, fmt.Sprint(r.Params.Data))
			},
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				progressed = append(progressed, fmt.Sprint(r.Params.Progress))
			},
		})
		transport := &mcp.StreamableClientTransport{
			Endpoint: "http://localhost/polls/mcp", HTTPClient: &http.Client{Transport: inProcess{server}},
		}
		s, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		commontest.OK(t, err)
		const takes, step = 2 * time.Hour, 4 * time.Minute
		params := &mcp.CallToolParams{Name: "long", Arguments: map[string]any{"ms": takes.Milliseconds(), "step": step.Milliseconds()}}
		params.SetProgressToken("p")
		begun := time.Now()
		result, err := s.CallTool(t.Context(), params)
		commontest.OK(t, err)
		if took := time.Since(begun); took < takes-step || took > takes+time.Minute {
			t.Errorf("took %s", took)
		}
		if text := result.Content[0].(*mcp.TextContent).Text; text != "after 29 steps" {
			t.Errorf("got %q", text)
		}
		time.Sleep(2 * time.Minute) // in virtual time: a little more than the longest retry of a listener
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got, want := strings.Join(progressed, " "), numbers(29); got != want {
			t.Errorf("progress: got %s, want %s", got, want)
		}
		if got, want := strings.Join(heard, " "), "3 6 9 12 15 18 21 24 27 end"; got != want {
			t.Errorf("on the standalone stream: got %s, want %s", got, want)
		}
		server.ledger.check(t, false)
		calls := server.ledger.calls(t)
		calls.once(t)
		if polls := calls.sorted(); len(polls) != 1 || polls[0] <= 100 || polls[0] >= 600 {
			t.Errorf("polls of the call: %v; want more than 100, and fewer than 300 an hour", polls)
		}
	})
}

// inProcess is a transport without a network: it calls a handler in the same process.
type inProcess struct{ handler http.Handler }

// RoundTrip returns when the response has begun. The rest of the body arrives as the
// handler flushes it.
func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	reader, writer := io.Pipe()
	w := &pipedResponse{header: http.Header{}, begun: make(chan int, 1), body: writer}
	in := r.Clone(ctx)
	in.RequestURI, in.Host, in.RemoteAddr = r.URL.RequestURI(), r.URL.Host, "127.0.0.1:1"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	go func() {
		defer cancel()
		p.handler.ServeHTTP(w, in)
		w.WriteHeader(http.StatusOK)
		_ = writer.Close() // never fails
	}()
	stop := context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Cause(ctx)) })
	select {
	case status := <-w.begun:
		return &http.Response{
			Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: w.sent, Body: &pipedBody{reader, cancel, stop}, ContentLength: -1, Request: r,
		}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// pipedResponse writes into a pipe. One goroutine uses it.
type pipedResponse struct {
	header, sent http.Header
	begun        chan int
	body         *io.PipeWriter
}

// Header returns what WriteHeader will send.
func (w *pipedResponse) Header() http.Header { return w.header }

// WriteHeader sends the header, once.
func (w *pipedResponse) WriteHeader(status int) {
	if w.sent == nil {
		w.sent = w.header.Clone()
		w.begun <- status
	}
}

// Write blocks until the client has read p.
func (w *pipedResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush does nothing, because Write does not buffer.
func (w *pipedResponse) Flush() {}

// pipedBody tells the handler when the client goes away.
type pipedBody struct {
	*io.PipeReader
	cancel context.CancelFunc
	stop   func() bool
}

// Close ends the exchange.
func (b *pipedBody) Close() error {
	b.stop()
	b.cancel()
	return b.PipeReader.Close()
}
