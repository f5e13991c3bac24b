package native

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// payloads is what a function writes, out of the event stream that Lambda wraps it
// in (application/vnd.amazon.eventstream). Each of its messages is
//
//	length of all (4) · length of the headers (4) · CRC of those (4) · headers · payload · CRC of all (4)
//
// with numbers in network order. Closing it closes the stream.
func payloads(stream io.ReadCloser) io.ReadCloser {
	return &payloadReader{in: bufio.NewReader(stream), stream: stream}
}

type payloadReader struct {
	in     *bufio.Reader
	stream io.ReadCloser
	left   []byte
	err    error // what comes when left has been read
}

// Read implements io.Reader. A function that failed is an error.
func (p *payloadReader) Read(b []byte) (int, error) {
	for len(p.left) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		p.next()
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}

// Close implements io.Closer.
func (p *payloadReader) Close() error { return p.stream.Close() }

func (p *payloadReader) next() {
	headers, payload, err := readFrame(p.in)
	switch {
	case errors.Is(err, io.EOF):
		p.err = io.ErrUnexpectedEOF
	case err != nil:
		p.err = err
	case headers[":message-type"] == "exception":
		p.err = fmt.Errorf("the call broke off: %s: %s", headers[":exception-type"], payload)
	case headers[":event-type"] == "PayloadChunk":
		p.left = payload
	case headers[":event-type"] == "InvokeComplete":
		p.err = completed(payload)
	}
}

// completed is io.EOF if the function has not failed.
func completed(payload []byte) error {
	var end struct{ ErrorCode, ErrorDetails string }
	if err := json.Unmarshal(payload, &end); err != nil {
		return fmt.Errorf("the end of the call cannot be read: %w", err)
	}
	if end.ErrorCode != "" {
		return fmt.Errorf("the function failed: %s: %s", end.ErrorCode, end.ErrorDetails)
	}
	return io.EOF
}

// maxFrame is more than Lambda puts into one message.
const maxFrame = 24 << 20

// Sizes of a frame, in bytes.
const (
	preludeSize = 12
	crcSize     = 4
)

// readFrame reads one message. io.EOF if there is none.
func readFrame(in io.Reader) (headers map[string]string, payload []byte, err error) {
	prelude := make([]byte, preludeSize)
	if _, err := io.ReadFull(in, prelude); err != nil {
		return nil, nil, err
	}
	total, size := binary.BigEndian.Uint32(prelude), binary.BigEndian.Uint32(prelude[4:])
	switch {
	case crc32.ChecksumIEEE(prelude[:8]) != binary.BigEndian.Uint32(prelude[8:]):
		return nil, nil, errors.New("the answer of the call is damaged: its checksum is wrong")
	case total > maxFrame || total < preludeSize+crcSize || size > total-preludeSize-crcSize:
		return nil, nil, errors.New("the answer of the call is damaged: a length is impossible")
	}
	rest := make([]byte, total-preludeSize)
	if _, err := io.ReadFull(in, rest); err != nil {
		return nil, nil, fmt.Errorf("the answer of the call ends in a frame: %w", io.ErrUnexpectedEOF)
	}
	sum := crc32.Update(crc32.ChecksumIEEE(prelude), crc32.IEEETable, rest[:len(rest)-crcSize])
	if sum != binary.BigEndian.Uint32(rest[len(rest)-crcSize:]) {
		return nil, nil, errors.New("the answer of the call is damaged: its checksum is wrong")
	}
	if headers, err = readHeaders(rest[:size]); err != nil {
		return nil, nil, err
	}
	return headers, rest[size : len(rest)-crcSize], nil
}

// isText is the type of a header that is text, the only one that Lambda uses.
const isText = 7

// readHeaders reads: length of the name (1) · name · type (1) · length of the text
// (2) · text.
func readHeaders(b []byte) (map[string]string, error) {
	headers := map[string]string{}
	for len(b) > 0 {
		n := int(b[0])
		if len(b) < 1+n+3 || b[1+n] != isText {
			return nil, errors.New("the answer of the call is damaged: a header cannot be read")
		}
		name, rest := string(b[1:1+n]), b[1+n+3:]
		size := int(binary.BigEndian.Uint16(b[1+n+1:]))
		if len(rest) < size {
			return nil, errors.New("the answer of the call is damaged: a header is cut")
		}
		headers[name], b = string(rest[:size]), rest[size:]
	}
	return headers, nil
}

// InPlace makes each HTTP request a call of a handler in this process, as a caller,
// who may be nobody where a key says who calls. The handler has to let in who calls by
// [Callers]. The response is read while it is written. Safe for concurrent use.
func InPlace(h http.Handler, who session.Identity) http.RoundTripper { return &inPlace{h, who} }

type inPlace struct {
	h   http.Handler
	who session.Identity
}

// RoundTrip implements http.RoundTripper.
func (p *inPlace) RoundTrip(r *http.Request) (*http.Response, error) {
	// It ends with the caller's, and when nobody reads any more; but for how long the
	// caller waits is not for how long the handler may run.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	unhook := context.AfterFunc(r.Context(), cancel)
	// Nobody too: a tool that calls may have been called by somebody in the same way.
	ctx = withCaller(ctx, p.who)
	call := r.Clone(ctx)
	call.Host, call.RequestURI = r.URL.Host, r.URL.RequestURI()
	if call.Body == nil {
		call.Body = http.NoBody
	}
	out, in := io.Pipe()
	w := &pipedResponse{header: http.Header{}, body: in, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer unhook()
		defer func() {
			_ = call.Body.Close() // as a server does
			if fault := recover(); fault != nil {
				w.WriteHeader(http.StatusInternalServerError)
				_ = in.CloseWithError(fmt.Errorf("the handler failed: %v", fault)) // returns nil always
				return
			}
			w.WriteHeader(http.StatusOK)
			_ = in.Close() // as above
		}()
		p.h.ServeHTTP(w, call)
	}()
	select {
	case <-w.begun:
		return &http.Response{
			Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: w.sent, Body: &readSide{out, cancel}, ContentLength: -1, Request: r,
		}, nil
	case <-r.Context().Done():
		_ = out.CloseWithError(r.Context().Err()) // returns nil always
		return nil, r.Context().Err()
	}
}

// readSide tells the handler when its response is closed.
type readSide struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (r *readSide) Close() error {
	r.cancel()
	return r.PipeReader.Close()
}

// pipedResponse is a response whose reader has it while it is written.
type pipedResponse struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	begun  chan struct{} // closed when status and sent are set
	status int
	sent   http.Header
}

// Header implements http.ResponseWriter.
func (w *pipedResponse) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *pipedResponse) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

// Write implements http.ResponseWriter. It waits for who reads.
func (w *pipedResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(bytes.Clone(p))
}

// Flush implements http.Flusher.
func (w *pipedResponse) Flush() { w.WriteHeader(http.StatusOK) }
