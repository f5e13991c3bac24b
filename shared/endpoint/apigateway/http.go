package apigateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-lambda-go/events"
	"github.com/awslabs/aws-lambda-go-api-proxy/core"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// HTTP returns the Lambda function behind a REST API with response streaming (integration response
// transfer mode STREAM), which serves h.
//
// The path of the request is the part after the stage, or after the base path of a custom domain.
// The header [transport.HeaderPrefix] has the stage or the base path. The context of the request
// is the invocation's, and ends early when the client stops reading. The response begins at the
// first Flush, when h has written more than 32 KiB, or when h returns, whichever comes first.
//
// HTTP answers a panic of h with 500, or aborts a response that has begun. HTTP does not log the
// panic; [transport.HTTP] does. HTTP itself logs an event that is not an HTTP request, and
// answers it with 400. The returned error is always nil.
func HTTP(h http.Handler, log *slog.Logger) func(context.Context, events.APIGatewayProxyRequest) (*events.APIGatewayProxyStreamingResponse, error) {
	return func(ctx context.Context, event events.APIGatewayProxyRequest) (*events.APIGatewayProxyStreamingResponse, error) {
		ctx, cancel := context.WithCancel(storage.WithTrace(ctx, event.RequestContext.RequestID))
		r, err := request(ctx, event)
		if err != nil {
			cancel()
			log.Warn("request", "status", http.StatusBadRequest, "error", err.Error())
			return unreadable(), nil
		}
		w := newResponse(cancel)
		go w.serve(h, r)
		return w.streaming(), nil
	}
}

// request makes the HTTP request of an event.
func request(ctx context.Context, event events.APIGatewayProxyRequest) (*http.Request, error) {
	if event.HTTPMethod == "" {
		return nil, errors.New("event is not one of a REST API: clients call the URL of the stack, and this function needs no schedule or warmer")
	}
	prefix, path := Place(event)
	event.Path = path
	// EventToRequest prints an event that it cannot read, so such an event must not reach it.
	if _, err := http.NewRequestWithContext(ctx, strings.ToUpper(event.HTTPMethod), "/"+strings.TrimPrefix(event.Path, "/"), nil); err != nil {
		return nil, fmt.Errorf("event is no http request: %w", err)
	}
	var accessor core.RequestAccessor
	r, err := accessor.EventToRequest(event)
	if err != nil {
		return nil, fmt.Errorf("body of the event cannot be decoded: %w", err)
	}
	complete(r, event.Headers, event.RequestContext.DomainName)
	if r.Header.Del(transport.HeaderPrefix); prefix != "" {
		r.Header.Set(transport.HeaderPrefix, prefix)
	}
	return r.WithContext(storage.WithAddress(ctx, event.RequestContext.Identity.SourceIP)), nil
}

// Place returns the path that an event asks for, and the prefix that clients write before it. At a
// custom domain the prefix is the base path, which e.Path contains. At API Gateway's own domain the
// prefix is the stage.
func Place(e events.APIGatewayProxyRequest) (prefix, path string) {
	path = "/" + strings.TrimPrefix(e.Path, "/")
	proxy := e.PathParameters["proxy"]
	routed := strings.TrimSuffix(strings.Replace(e.Resource, "{proxy+}", proxy, 1), "/")
	if e.Resource != "" && strings.Contains(e.Resource, "{proxy+}") == (proxy != "") {
		for _, written := range []string{routed, (&url.URL{Path: routed}).EscapedPath()} {
			if base, ok := strings.CutSuffix(strings.TrimSuffix(path, "/"), written); ok && base != "" {
				prefix, path = base, "/"+strings.TrimPrefix(path[len(base):], "/")
				break
			}
		}
	}
	// At API Gateway's own domain, only RequestContext.Path has the stage.
	whole, ok := strings.CutSuffix(strings.TrimSuffix(e.RequestContext.Path, "/"), strings.TrimSuffix(path, "/"))
	if ok && strings.HasPrefix(whole, "/") {
		prefix = whole
	}
	return prefix, path
}

// complete adds the headers that only the single-value form of the event has. It sets Host
// to the Host header of the client, or else to the domain of the API.
func complete(r *http.Request, headers map[string]string, domain string) {
	for name, value := range headers {
		if r.Header.Get(name) == "" {
			r.Header.Set(name, value)
		}
	}
	if r.Host = r.Header.Get("Host"); r.Host == "" {
		r.Host = domain
	}
	r.Header.Del("Host")
}

func unreadable() *events.APIGatewayProxyStreamingResponse {
	return &events.APIGatewayProxyStreamingResponse{
		StatusCode: http.StatusBadRequest, Headers: map[string]string{"Content-Type": wire.MediaJSON},
		Body: bytes.NewReader(wire.ErrorResponse(nil, &wire.Error{
			Code: wire.CodeInvalidRequest, Message: "the request could not be read; check its path and the encoding of its body",
		})),
	}
}

// gatherMost is how many bytes a response buffers before it must begin.
const gatherMost = 32 << 10

// response is the http.ResponseWriter of one invocation. The handler's goroutine owns
// all of it but the two channels and the reader. Once one of the channels is closed,
// other goroutines may read the status and the headers that were sent.
type response struct {
	header http.Header
	status int
	sent   http.Header // the headers when the status was set
	buf    bytes.Buffer
	writer *io.PipeWriter

	reader *io.PipeReader
	cancel context.CancelFunc
	begun  chan struct{} // is closed if the response begins before the handler returns
	done   chan struct{} // is closed when the handler has returned
	piped  bool          // the response has begun, and its bytes go through the pipe
}

func newResponse(cancel context.CancelFunc) *response {
	w := &response{header: http.Header{}, cancel: cancel, begun: make(chan struct{}), done: make(chan struct{})}
	w.reader, w.writer = io.Pipe()
	return w
}

// serve runs the handler to its end.
func (w *response) serve(h http.Handler, r *http.Request) {
	defer close(w.done)
	defer w.cancel()
	defer func() { w.finish(recover()) }()
	h.ServeHTTP(w, r)
}

// finish completes the response after the handler has returned, or has panicked with fault.
func (w *response) finish(fault any) {
	switch {
	case w.piped && fault != nil:
		_ = w.writer.CloseWithError(fmt.Errorf("handler panicked: %v", fault)) // CloseWithError always returns nil
	case w.piped:
		// The response is complete, so it does not matter if the reader has gone.
		_ = w.drain()
		_ = w.writer.Close()
	case fault != nil:
		w.header, w.status = http.Header{"Content-Type": {wire.MediaJSON}}, 0
		w.buf.Reset()
		w.WriteHeader(http.StatusInternalServerError)
		w.buf.Write(wire.ErrorResponse(nil, &wire.Error{Code: wire.CodeInternal, Message: "internal error; it has been logged"}))
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// streaming waits until the response can begin and returns it.
func (w *response) streaming() *events.APIGatewayProxyStreamingResponse {
	res := &events.APIGatewayProxyStreamingResponse{Headers: map[string]string{}, MultiValueHeaders: map[string][]string{}}
	select {
	case <-w.begun:
	case <-w.done:
	}
	if w.piped {
		res.Body = &body{w}
	} else {
		res.Body = &w.buf
	}
	res.StatusCode = w.status
	if !w.piped && w.buf.Len() == 0 {
		// If nothing follows the headers but the end, some of AWS's endpoints keep a
		// streamed response open.
		w.sent.Set("Content-Length", "0")
	}
	for name, values := range w.sent {
		if len(values) == 1 {
			res.Headers[name] = values[0]
		} else {
			res.MultiValueHeaders[name] = values
		}
	}
	return res
}

func (w *response) Header() http.Header { return w.header }

// WriteHeader sets the status and the headers. Only its first call counts.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status, w.sent = status, w.header.Clone()
	}
}

// Write buffers p. When the buffer has more than gatherMost bytes, Write sends them.
func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.buf.Write(p)
	if w.buf.Len() > gatherMost {
		if err := w.drain(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush is FlushError for callers that do not need the error.
func (w *response) Flush() { _ = w.drain() }

// FlushError sends the buffered bytes. It returns an error if the reader has gone.
func (w *response) FlushError() error { return w.drain() }

func (w *response) drain() error {
	w.WriteHeader(http.StatusOK)
	if !w.piped {
		w.piped = true
		close(w.begun)
	}
	defer w.buf.Reset()
	if w.buf.Len() == 0 {
		return nil
	}
	if _, err := w.writer.Write(w.buf.Bytes()); err != nil {
		return fmt.Errorf("response is not read any more: %w", err)
	}
	return nil
}

// body is the body of a response that has begun, as the runtime reads it.
type body struct{ w *response }

// Read returns the bytes that the handler flushed, and io.EOF when the handler has
// returned.
func (b *body) Read(p []byte) (int, error) { return b.w.reader.Read(p) }

// Close ends the handler's context and waits for the handler to return, so that no work
// of this invocation runs on into the next.
func (b *body) Close() error {
	b.w.cancel()
	err := b.w.reader.Close()
	<-b.w.done
	return err
}
