package lambda

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

const (
	firstChunk      = 32 << 10 // most bytes of an answer in the first read
	maxReport       = 1 << 20  // bytes of an error report
	maxErrorTrailer = 64 << 10
	// deathWait is how long the reader of a broken answer waits for the end of its
	// process.
	deathWait = time.Second
)

// newRuntimeAPI serves the HTTP API from which a function's process gets its work: the calls of
// version 2018-06-01 of the Lambda Runtime API that our functions make.
//
//	GET  /<instance>/2018-06-01/runtime/invocation/next
//	POST /<instance>/2018-06-01/runtime/invocation/<id>/response
//	POST /<instance>/2018-06-01/runtime/invocation/<id>/error
func newRuntimeAPI(instances *sync.Map) http.Handler {
	mux := http.NewServeMux()
	for pattern, call := range map[string]func(http.ResponseWriter, *http.Request, *instance){
		"GET /{instance}/2018-06-01/runtime/invocation/next":           next,
		"POST /{instance}/2018-06-01/runtime/invocation/{id}/response": response,
		"POST /{instance}/2018-06-01/runtime/invocation/{id}/error":    failed,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			i, ok := instances.Load(r.PathValue("instance"))
			if !ok {
				refuseCall(w, http.StatusForbidden, "UnknownInstance", "no such instance")
				return
			}
			call(w, r, i.(*instance))
		})
	}
	return mux
}

func refuseCall(w http.ResponseWriter, status int, kind, message string) {
	text, _ := json.Marshal(map[string]string{"errorType": kind, "errorMessage": message}) // strings always encode
	awsapi.JSON(w, status, text)
}

func accept(w http.ResponseWriter) { awsapi.JSON(w, http.StatusAccepted, []byte(`{"status":"OK"}`)) }

func next(w http.ResponseWriter, r *http.Request, i *instance) {
	<-i.spawned
	inv := i.fn.next(i, r.Context().Done())
	if inv == nil {
		return
	}
	h := w.Header()
	h.Set("Lambda-Runtime-Aws-Request-Id", inv.id)
	h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(inv.started.Add(i.fn.Timeout).UnixMilli(), 10))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", aws.FunctionARN(i.fn.Name))
	h.Set("Lambda-Runtime-Trace-Id", NewTraceID(inv.started))
	// If the write fails, the process is about to end, and that settles the invocation.
	awsapi.JSON(w, http.StatusOK, inv.payload)
}

// answered finds the invocation that a request answers, or refuses the request.
func answered(w http.ResponseWriter, r *http.Request, i *instance) *invocation {
	inv := i.fn.take(i, r.PathValue("id"))
	if inv == nil {
		refuseCall(w, http.StatusBadRequest, "InvalidRequestID", "no invocation of that id waits for an answer")
	}
	return inv
}

// failed handles the error with which an invocation has ended.
func failed(w http.ResponseWriter, r *http.Request, i *instance) {
	inv := answered(w, r, i)
	if inv == nil {
		return
	}
	report := readReport(r.Body)
	report.Function, report.RequestID = i.fn.Name, inv.id
	i.fn.complete(inv)
	inv.fail(report)
	accept(w)
}

// readReport reads an error in the form of the runtime clients.
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

// response passes an answer on while the process writes it. The caller gets the Invocation
// with the first bytes.
func response(w http.ResponseWriter, r *http.Request, i *instance) {
	inv := answered(w, r, i)
	if inv == nil {
		return
	}
	first := make([]byte, firstChunk)
	n, err := readSome(r.Body, first)
	pipe, to := io.Pipe()
	answer := &Invocation{Body: answerBody{io.MultiReader(bytes.NewReader(first[:n]), pipe), pipe}}
	if n > 0 {
		if inv.claim() {
			inv.result <- result{answer: answer}
		} else {
			_ = pipe.Close()
		}
		if err == nil {
			if _, err = io.Copy(untilClosed{to}, r.Body); err == nil {
				err = io.EOF
			}
		}
	}
	failure := ending(i, inv, r, err)
	i.fn.complete(inv)
	if n == 0 && inv.claim() {
		answer.Failed = failure
		inv.result <- result{answer: answer}
	}
	if failure != nil && n > 0 {
		_ = to.CloseWithError(failure)
	} else {
		_ = to.Close()
	}
	if errors.Is(err, io.EOF) {
		accept(w)
	}
}

// answerBody is the body of an answer. Close may come from any goroutine.
type answerBody struct {
	io.Reader
	io.Closer
}

// untilClosed writes to a pipe, and discards everything after the reader has closed
// it.
type untilClosed struct{ w *io.PipeWriter }

func (u untilClosed) Write(p []byte) (int, error) {
	if n, err := u.w.Write(p); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return n, err
	}
	return len(p), nil
}

// readSome reads until it has at least one byte or an error.
func readSome(from io.Reader, buf []byte) (int, error) {
	for {
		if n, err := from.Read(buf); n > 0 || err != nil {
			return n, err
		}
	}
}

// ending returns why an answer ended, or nil if it is complete. The reason is the error
// that the function reported in the trailers, or else the failure of the process.
func ending(i *instance, inv *invocation, r *http.Request, err error) *FunctionError {
	if errors.Is(err, io.EOF) {
		return trailerError(r.Trailer, inv)
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

// trailerError reads the trailers with which a function reports an error after the
// first byte: the error's type, and the report in base64.
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

// NewTraceID returns a trace header in X-Ray's form.
func NewTraceID(now time.Time) string {
	return fmt.Sprintf("Root=1-%08x-%08x%016x", uint32(now.Unix()), rand.Uint32(), rand.Uint64())
}
