package local

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/shared/loop"
)

const (
	// runtimeHost stands for the socket in AWS_LAMBDA_RUNTIME_API; the dialer that
	// SocketEnv asks for ignores it.
	runtimeHost = "local"

	streamBuffer    = 32 << 10
	maxReport       = 1 << 20 // bytes of an error report
	maxErrorTrailer = 64 << 10
	// deathWait is how long a broken answer may wait for its process to be seen dead.
	deathWait = time.Second
)

// runtimeAPI is the HTTP API a function's process works off, version 2018-06-01 of
// the Lambda Runtime API and, for functions that ask for SIGTERM, two calls of the
// Extensions API:
//
//	GET  /<instance>/2018-06-01/runtime/invocation/next
//	POST /<instance>/2018-06-01/runtime/invocation/<id>/response
//	POST /<instance>/2018-06-01/runtime/invocation/<id>/error
//	POST /<instance>/2018-06-01/runtime/init/error
//	GET  /<instance>/2018-06-01/runtime/loop        what is quicker, see [loop]
//	POST /<instance>/2020-01-01/extension/register
//	GET  /<instance>/2020-01-01/extension/event/next
type runtimeAPI Pool

// ServeHTTP cuts the path by hand: an invocation costs two requests, and a pattern
// router would be a tenth of each.
func (a *runtimeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, call, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	found, ok := a.instances.Load(id)
	if !ok {
		refuseCall(w, http.StatusForbidden, "UnknownInstance", "no such instance")
		return
	}
	i := found.(*instance)
	invocation, ok := strings.CutPrefix(call, "2018-06-01/runtime/invocation/")
	switch {
	case ok && invocation == "next" && r.Method == http.MethodGet:
		a.next(w, r, i)
	case call == loop.Path && r.Method == http.MethodGet:
		a.loop(w, i)
	case ok && r.Method == http.MethodPost:
		request, what, _ := strings.Cut(invocation, "/")
		a.answer(w, r, i, request, what)
	case call == "2018-06-01/runtime/init/error" && r.Method == http.MethodPost:
		a.initError(w, r, i)
	case call == "2020-01-01/extension/register" && r.Method == http.MethodPost:
		a.register(w, i)
	case call == "2020-01-01/extension/event/next" && r.Method == http.MethodGet:
		<-r.Context().Done()
	default:
		refuseCall(w, http.StatusNotFound, "NotFound", "no such call")
	}
}

func refuseCall(w http.ResponseWriter, status int, kind, message string) {
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"errorType": kind, "errorMessage": message})
}

func accept(w http.ResponseWriter) {
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, `{"status":"OK"}`+"\n")
}

// next hands out an invocation. The header names are spelled in canonical form.
func (a *runtimeAPI) next(w http.ResponseWriter, r *http.Request, i *instance) {
	<-i.spawned
	inv, ok := i.fn.poll(i, r.Context().Done())
	if !ok {
		return
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(inv.payload))}
	h["Lambda-Runtime-Aws-Request-Id"] = []string{inv.id}
	h["Lambda-Runtime-Deadline-Ms"] = []string{strconv.FormatInt(inv.started.Add(i.fn.Timeout).UnixMilli(), 10)}
	h["Lambda-Runtime-Invoked-Function-Arn"] = []string{functionARN(i.fn.Name)}
	h["Lambda-Runtime-Trace-Id"] = []string{newTraceID(inv.started)}
	// If it cannot be written the process is dying, and its end settles everything.
	_, _ = w.Write(inv.payload)
}

func functionARN(name string) string {
	return "arn:aws:lambda:" + region + ":" + account + ":function:" + name
}

func newTraceID(now time.Time) string {
	return fmt.Sprintf("Root=1-%08x-%08x%016x", uint32(now.Unix()), rand.Uint32(), rand.Uint64())
}

func (a *runtimeAPI) answer(w http.ResponseWriter, r *http.Request, i *instance, request, what string) {
	if what != "response" && what != "error" {
		refuseCall(w, http.StatusNotFound, "NotFound", "no such call")
		return
	}
	inv := i.fn.take(i, request)
	if inv == nil {
		refuseCall(w, http.StatusBadRequest, "InvalidRequestID", "no invocation of that id waits for an answer")
		return
	}
	if what == "error" {
		report := readReport(r.Body)
		report.Function, report.RequestID = i.fn.Name, inv.id
		i.fn.complete(inv, true)
		inv.fail(report)
		accept(w)
		return
	}
	whole := a.response(i, inv, incoming{
		contentType: r.Header.Get("Content-Type"), body: r.Body,
		broken: func() *FunctionError { return trailerError(r.Trailer, inv) },
	})
	if whole {
		accept(w)
	}
}

// readReport reads an error as the runtime clients write it.
func readReport(from io.Reader) *FunctionError {
	raw, err := io.ReadAll(io.LimitReader(from, maxReport))
	var report struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	if err != nil || json.Unmarshal(raw, &report) != nil || report.Type == "" {
		return &FunctionError{Type: "Runtime.Unknown", Message: "the function reported an error without saying which"}
	}
	return &FunctionError{Type: report.Type, Message: report.Message}
}

func (a *runtimeAPI) initError(w http.ResponseWriter, r *http.Request, i *instance) {
	<-i.spawned
	if !i.fn.initFailed(i, readReport(r.Body)) {
		refuseCall(w, http.StatusForbidden, "InvalidStateTransition", "the instance is not being initialized")
		return
	}
	accept(w)
}

func (a *runtimeAPI) register(w http.ResponseWriter, i *instance) {
	w.Header()["Content-Type"] = []string{"application/json"}
	w.Header()["Lambda-Extension-Identifier"] = []string{uuid.NewString()}
	_ = json.NewEncoder(w).Encode(map[string]string{
		"functionName": i.fn.Name, "functionVersion": "$LATEST", "handler": "bootstrap",
	})
}

// incoming is an answer that a process has begun. broken is asked at its end for the
// error that the function gave in the middle of it; nil for none.
type incoming struct {
	contentType string
	body        io.Reader
	broken      func() *FunctionError
}

// response passes the answer on while the process writes it, and reports whether it
// came to its end. The caller gets the invocation with the first bytes. There are
// two buffers: the process fills one while the caller reads the other, and the
// hand-over of the one says that the other is free.
func (a *runtimeAPI) response(i *instance, inv *invocation, from incoming) bool {
	s := &stream{
		pool: &a.buffers, chunks: make(chan []byte), closed: make(chan struct{}),
		mine: a.buffers.Get().(*[streamBuffer]byte), theirs: a.buffers.Get().(*[streamBuffer]byte),
	}
	n, err := readSome(from.body, s.theirs[:])
	if n == 0 {
		s.recycle()
		return a.empty(i, inv, from, err)
	}
	s.rest = s.theirs[:n]
	if inv.claim() {
		inv.result <- result{answer: &Invocation{ContentType: from.contentType, Body: s}}
	} else {
		_ = s.Close()
	}
	mine, theirs := s.mine, s.theirs
	for err == nil {
		n, err = readSome(from.body, mine[:])
		if n == 0 {
			continue
		}
		select {
		case s.chunks <- mine[:n]:
			mine, theirs = theirs, mine
		case <-s.closed:
		}
	}
	failure := ending(i, inv, from, err)
	i.fn.complete(inv, failure != nil)
	s.finish(failure)
	return errors.Is(err, io.EOF)
}

// empty settles an answer without a first byte.
func (a *runtimeAPI) empty(i *instance, inv *invocation, from incoming, err error) bool {
	failure := ending(i, inv, from, err)
	i.fn.complete(inv, failure != nil)
	if inv.claim() {
		inv.result <- result{answer: &Invocation{
			ContentType: from.contentType, Body: noBody{}, Failed: failure,
		}}
	}
	return errors.Is(err, io.EOF)
}

// readSome reads until there is a byte or an error.
func readSome(from io.Reader, buf []byte) (int, error) {
	for {
		if n, err := from.Read(buf); n > 0 || err != nil {
			return n, err
		}
	}
}

// ending says what the end of an answer means: nil if it is whole, the error that
// the function gave if it did, else what became of the process.
func ending(i *instance, inv *invocation, from incoming, err error) *FunctionError {
	if errors.Is(err, io.EOF) {
		return from.broken()
	}
	patience := time.NewTimer(deathWait)
	defer patience.Stop()
	select {
	case <-i.dead:
	case <-patience.C:
		i.fn.truncated(inv)
		<-i.dead
	}
	return i.failure(inv)
}

// trailerError reads the trailers by which a function reports an error after the
// first byte: its type, and base64 of the report.
func trailerError(trailer http.Header, inv *invocation) *FunctionError {
	kind := trailer.Get("Lambda-Runtime-Function-Error-Type")
	if kind == "" {
		return nil
	}
	e := &FunctionError{Function: inv.fn.Name, RequestID: inv.id, Type: kind}
	if coded := trailer.Get("Lambda-Runtime-Function-Error-Body"); len(coded) <= maxErrorTrailer {
		var report struct {
			Message string `json:"errorMessage"`
		}
		if raw, err := base64.StdEncoding.DecodeString(coded); err == nil && json.Unmarshal(raw, &report) == nil {
			e.Message = report.Message
		}
	}
	return e
}

// stream is the body of an answer. One goroutine reads; Close may come from any.
type stream struct {
	pool         *sync.Pool
	mine, theirs *[streamBuffer]byte // given back when the reader has seen the end
	rest         []byte              // of the chunk the reader has
	chunks       chan []byte
	end          error // set before chunks is closed
	closing      sync.Once
	closed       chan struct{}
}

func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 && len(p) > 0 {
		select {
		case <-s.closed:
			return 0, io.ErrClosedPipe
		default:
		}
		select {
		case chunk, ok := <-s.chunks:
			if !ok {
				s.recycle()
				return 0, s.end
			}
			s.rest = chunk
		case <-s.closed:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *stream) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return nil
}

func (s *stream) finish(failure *FunctionError) {
	s.end = io.EOF
	if failure != nil {
		s.end = failure
	}
	close(s.chunks)
}

// recycle is called when there is only the caller left who could use the buffers. A
// stream that is closed early leaves them to the garbage collector.
func (s *stream) recycle() {
	if s.mine != nil {
		s.pool.Put(s.mine)
		s.pool.Put(s.theirs)
		s.mine, s.theirs = nil, nil
	}
}
