package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// wiretap records the order in which progress and responses arrive over the transport. The
// SDK puts notifications into a queue and passes responses straight to the caller, so the
// order that its handlers see proves nothing about the endpoint. wiretap also records the
// answer to DELETE.
type wiretap struct {
	base http.RoundTripper

	mu           sync.Mutex
	order        []string
	deleteStatus int
}

// RoundTrip passes the exchange on, and reads along while the SDK reads the body of the
// answer.
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

// noted returns what came since restart: "1/5" for a progress notification, "result" for
// a response that ends a call. It leaves out a response that only asks something, because
// the SDK answers the question and continues the call by itself.
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

// tappedLines is the writer for mcp.LoggingTransport, which writes each message as one
// line in one piece.
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
