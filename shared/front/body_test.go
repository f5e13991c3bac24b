package front_test

import (
	"io"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// connection is the response of a connection whose body breaks off at its read deadline, as
// net/http's does.
type connection struct {
	*httptest.ResponseRecorder
	body  *io.PipeWriter
	timer *time.Timer
}

func (c *connection) SetReadDeadline(t time.Time) error {
	if c.timer != nil {
		c.timer.Stop()
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), func() { _ = c.body.CloseWithError(os.ErrDeadlineExceeded) })
	}
	return nil
}

func TestBodyThatDoesNotComeIsGivenUpAfterAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		unsent, body := io.Pipe()
		r := request("POST", "/quiet/mcp", "")
		r.Body, r.ContentLength = unsent, 10
		conn := &connection{ResponseRecorder: httptest.NewRecorder(), body: body}
		begun := time.Now()
		w.handler().ServeHTTP(conn, r)
		if took := time.Since(begun); conn.Code != 400 || took != time.Minute {
			t.Errorf("answered %d after %s, want 400 after a minute", conn.Code, took)
		}
	})
}
