package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// wiretap notes in which order progress and responses come in over the transport. The SDK hands
// notifications to a queue and responses straight to the caller, so the order its handlers see
// proves nothing about the endpoint. It also notes how DELETE was answered.
type wiretap struct {
	base http.RoundTripper

	mu           sync.Mutex
	order        []string
	deleteStatus int
}

// RoundTrip passes the exchange on and listens to the answer's body as the SDK reads it.
func (w *wiretap) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if req.Method == http.MethodDelete {
		w.mu.Lock()
		w.deleteStatus = resp.StatusCode
		w.mu.Unlock()
	}
	resp.Body = &tappedBody{ReadCloser: resp.Body, tap: w}
	return resp, nil
}

// restart forgets what was noted so far.
func (w *wiretap) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.order = nil
}

// noted returns what came in since restart: "1/5" for a progress notification, "result" for a
// response that ends a call: the SDK goes on by itself with one that only asks something.
func (w *wiretap) noted() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.order...)
}

func (w *wiretap) deleted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deleteStatus
}

// note takes one line of an SSE stream or one whole JSON body.
func (w *wiretap) note(line []byte) {
	var msg struct {
		Method string          `json:"method"`
		ID     json.RawMessage `json:"id"`
		Params struct {
			Progress float64 `json:"progress"`
			Total    float64 `json:"total"`
		} `json:"params"`
		Result struct {
			Type string `json:"resultType"`
		} `json:"result"`
	}
	line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data:")))
	if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &msg) != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case msg.Method == "notifications/progress":
		w.order = append(w.order, fmt.Sprintf("%g/%g", msg.Params.Progress, msg.Params.Total))
	case msg.Method == "" && msg.ID != nil && msg.Result.Type != "input_required":
		w.order = append(w.order, "result")
	}
}

// tappedLines takes what mcp.LoggingTransport writes, a line in one piece for each message.
type tappedLines struct{ tap *wiretap }

func (l *tappedLines) Write(p []byte) (int, error) {
	if line, ok := bytes.CutPrefix(p, []byte("read: ")); ok {
		l.tap.note(line)
	}
	return len(p), nil
}

type tappedBody struct {
	io.ReadCloser
	tap  *wiretap
	line []byte
}

func (b *tappedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.line = append(b.line, p[:n]...)
	for {
		end := bytes.IndexByte(b.line, '\n')
		if end < 0 {
			break
		}
		b.tap.note(b.line[:end])
		b.line = b.line[end+1:]
	}
	if err != nil {
		b.tap.note(b.line)
		b.line = nil
	}
	return n, err
}
