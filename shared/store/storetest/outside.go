package storetest

import (
	"bytes"
	"context"
	"io"
	"net/http"
)

// outside runs work outside of all bubbles of package synctest. Its channels are made outside of the
// bubbles, so a bubble's clock stands still while a goroutine of the bubble waits for them.
type outside struct{ idle chan worker }

type worker struct {
	work chan func()
	done chan struct{}
}

// workers bounds how many requests are on their way at once.
const workers = 16

func newOutside() *outside {
	o := &outside{make(chan worker, workers)}
	for range workers {
		w := worker{make(chan func()), make(chan struct{})}
		go func() {
			for f := range w.work {
				f()
				w.done <- struct{}{}
			}
		}()
		o.idle <- w
	}
	return o
}

// do runs f outside of all bubbles of package synctest. f must use no channel, timer or context of
// a bubble.
func (o *outside) do(f func()) {
	w := <-o.idle
	w.work <- f
	<-w.done
	o.idle <- w
}

// Do sends a request, and reads the whole answer, as the HTTP client of a DynamoDB client.
func (o *outside) Do(r *http.Request) (res *http.Response, err error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	o.do(func() { res, err = exchange(r) }) //nolint:bodyclose // its body is in memory
	return res, err
}

// exchange sends a request that may come from a synctest bubble, and reads the answer. It sends
// the request with another context, because a context of a bubble has channels of the bubble.
func exchange(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	sent, err := http.NewRequestWithContext(context.Background(), r.Method, r.URL.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	sent.Header = r.Header
	res, err := http.DefaultClient.Do(sent)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	res.Body = io.NopCloser(bytes.NewReader(answer))
	return res, err
}
