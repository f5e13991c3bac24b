package runner_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func closedWith(code runner.CloseCode) error { return &runner.ClosedError{Code: code} }

func TestConnectionClosedAsRefusedStopsTheRunner(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.wire.set(nil, closedWith(4099))
		b.conn.cut()
		var closed *runner.ClosedError
		if err := b.returned(); storage.CodeOf(err) != storage.Invalid || !errors.As(err, &closed) || closed.Code != 4099 {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestHostThatIsBusyIsTriedAgainWithPauses(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.wire.set(&runner.RefusedError{Status: 429, After: 17 * time.Second}, nil)
		b.conn.cut()
		time.Sleep(90 * time.Second)
		synctest.Wait()
		b.runs()
		if gaps := b.wire.gaps()[1:]; len(gaps) < 3 || slices.Max(gaps) > 17*time.Second || slices.Min(gaps) < 17*time.Second {
			t.Errorf("tried again after %v", gaps)
		}
		b.wire.set(nil, nil)
		b.welcome(b.dialed(), benchGen)
		b.pass(time.Hour)
	})
}

func TestRunnerThatIsNotAdmittedDoesNotTryForEver(t *testing.T) {
	tries := 0
	onBench(t, func(b *bench) {
		time.Sleep(time.Minute)
		var refused *runner.RefusedError
		if err := b.returned(); storage.CodeOf(err) != storage.Invalid || !errors.As(err, &refused) || refused.Status != 401 {
			t.Errorf("Run returned %v", err)
		}
		commontest.Equal(t, 5, tries)
	}, func(c *runner.Config) {
		c.Dial = func(context.Context, string, http.Header) (runner.Conn, error) {
			tries++
			return nil, &runner.RefusedError{Status: 401}
		}
	})
}

func TestCloseCodeOfTheHostIsRead(t *testing.T) {
	conn, server := dialRaw(t)
	received := make(chan error, 1)
	go func() {
		_, err := conn.Receive()
		received <- err
	}()
	go server.write(0x88, append([]byte{0x0f, 0xa1}, "somebody newer"...)) // 4001
	commontest.EqualIn(t, "the close was answered with opcode", 8, server.read().opcode)
	var closed *runner.ClosedError
	if err := <-received; !errors.As(err, &closed) || closed.Code != runner.CloseFenced || closed.Reason != "somebody newer" {
		t.Errorf("got %v", err)
	}
}

func TestRefusalSaysWhenToComeAgain(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "9")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	_, err := runner.DialWebSocket(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	var refused *runner.RefusedError
	if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests || refused.After != 9*time.Second {
		t.Errorf("got %v", err)
	}
}
