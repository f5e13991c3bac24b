package lambda

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

const (
	firstChunk      = 32 << 10 // bytes of an answer that its caller gets at once
	maxReport       = 1 << 20  // bytes of an error report
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
	h["Lambda-Runtime-Invoked-Function-Arn"] = []string{FunctionARN(i.fn.Name)}
	h["Lambda-Runtime-Trace-Id"] = []string{awsapi.NewTraceID(inv.started)}
	// If it cannot be written the process is dying, and its end settles everything.
	_, _ = w.Write(inv.payload)
}

// FunctionARN is the ARN of a function of this machine.
func FunctionARN(name string) string {
	return "arn:aws:lambda:" + region + ":" + Account + ":function:" + name
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
// came to its end. The caller gets the invocation with the first bytes.
func (a *runtimeAPI) response(i *instance, inv *invocation, from incoming) bool {
	first := make([]byte, firstChunk)
	n, err := readSome(from.body, first)
	if n == 0 {
		return a.empty(i, inv, from, err)
	}
	r, w := io.Pipe()
	if inv.claim() {
		body := answerBody{io.MultiReader(bytes.NewReader(first[:n]), r), r}
		inv.result <- result{answer: &Invocation{ContentType: from.contentType, Body: body}}
	} else {
		_ = r.Close()
	}
	if err == nil {
		if _, err = io.Copy(untilClosed{w}, from.body); err == nil {
			err = io.EOF
		}
	}
	failure := ending(i, inv, from, err)
	i.fn.complete(inv, failure != nil)
	if failure != nil {
		_ = w.CloseWithError(failure)
	} else {
		_ = w.Close()
	}
	return errors.Is(err, io.EOF)
}

// answerBody is the body of an answer. Close may come from any goroutine.
type answerBody struct {
	io.Reader
	io.Closer
}

// untilClosed writes to a pipe, and throws away what comes after its reader has gone.
type untilClosed struct{ w *io.PipeWriter }

func (u untilClosed) Write(p []byte) (int, error) {
	if n, err := u.w.Write(p); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return n, err
	}
	return len(p), nil
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
