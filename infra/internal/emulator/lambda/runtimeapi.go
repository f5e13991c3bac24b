package lambda

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// runtimeAPI serves the HTTP API from which a function's process gets its work. It has the calls
// of the Lambda Runtime API, version 2018-06-01, that functions in Go need.
func (p *Pool) runtimeAPI() http.Handler {
	mux := http.NewServeMux()
	for pattern, call := range map[string]func(http.ResponseWriter, *http.Request, *instance){
		"GET /{instance}/2018-06-01/runtime/invocation/next":           next,
		"POST /{instance}/2018-06-01/runtime/invocation/{id}/response": response,
		"POST /{instance}/2018-06-01/runtime/invocation/{id}/error":    failed,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			i, ok := p.instances.Load(r.PathValue("instance"))
			if !ok {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			call(w, r, i.(*instance))
		})
	}
	return mux
}

func accept(w http.ResponseWriter) { awsapi.JSON(w, http.StatusAccepted, []byte(`{"status":"OK"}`)) }

func next(w http.ResponseWriter, r *http.Request, i *instance) {
	inv := i.fn.next(i, r.Context().Done())
	if inv == nil {
		return
	}
	h := w.Header()
	h.Set("Lambda-Runtime-Aws-Request-Id", inv.id)
	h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(inv.started.Add(i.fn.Timeout).UnixMilli(), 10))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", aws.FunctionARN(i.fn.Name))
	h.Set("Lambda-Runtime-Trace-Id", NewTraceID(inv.started))
	// If the write fails, the process is about to end, and function.buried makes the invocation
	// fail.
	awsapi.JSON(w, http.StatusOK, inv.payload)
}

// failed handles a report that the invocation of process i has ended with an error.
func failed(w http.ResponseWriter, r *http.Request, i *instance) {
	inv := i.fn.take(i, r.PathValue("id"))
	if inv == nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var report struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	err := json.NewDecoder(r.Body).Decode(&report)
	i.fn.complete(inv)
	inv.fail(errors.Join(fmt.Errorf("function %s: %s: %s", i.fn.Name, report.Type, report.Message), err))
	accept(w)
}

// response passes an answer on while the process writes it. The caller of [Pool.Invoke] gets the
// Invocation when the first bytes have arrived.
func response(w http.ResponseWriter, r *http.Request, i *instance) {
	inv := i.fn.take(i, r.PathValue("id"))
	if inv == nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	first := make([]byte, 32<<10)
	n, err := io.ReadAtLeast(r.Body, first, 1)
	pipe, to := io.Pipe()
	answer := &Invocation{Body: answerBody{io.MultiReader(bytes.NewReader(first[:n]), pipe), pipe}}
	if n > 0 {
		if inv.claim() {
			inv.result <- result{answer: answer}
		} else {
			_ = pipe.Close()
		}
		_, err = io.Copy(untilClosed{to}, r.Body)
	}
	var failure error
	switch kind := r.Trailer.Get("Lambda-Runtime-Function-Error-Type"); {
	case err != nil && !errors.Is(err, io.EOF): // the process is ending, or has cut the connection
		i.fn.mu.Lock()
		if i.state != stopping {
			i.fn.kill(i, "its answer broke off")
		}
		i.fn.mu.Unlock()
		<-i.dead
		failure = i.failure
	case kind != "":
		failure = fmt.Errorf("function %s: %s", i.fn.Name, kind)
	}
	i.fn.complete(inv)
	if n == 0 && inv.claim() {
		answer.Failed = failure
		inv.result <- result{answer: answer}
	}
	_ = to.CloseWithError(failure) // without a failure the reader gets io.EOF
	if failure == nil {
		accept(w)
	}
}

// answerBody is the body of an answer. Any goroutine may call Close.
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

// NewTraceID returns a trace header in X-Ray's form.
func NewTraceID(now time.Time) string {
	return fmt.Sprintf("Root=1-%08x-%08x%016x", uint32(now.Unix()), rand.Uint32(), rand.Uint64())
}
