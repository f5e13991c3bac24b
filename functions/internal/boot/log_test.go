package boot

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/loop"
	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// invocation is the context of one that runs in a loop, and what is said with its end.
func invocation(t *testing.T, handle func(context.Context)) (said string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket) //nolint:noctx // it opens at once
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		_ = loop.Serve(t.Context(), socket, "i", 1, func(ctx context.Context, _ loop.Invocation) (io.Reader, error) {
			handle(ctx)
			return strings.NewReader(""), nil
		}, nil)
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
		t.Fatal(err)
	}
	host, err := loop.NewConn(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Hand(loop.Invocation{Deadline: time.Now().Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	answer, err := host.Answer()
	if err == nil {
		_, err = io.Copy(io.Discard, answer)
	}
	if err := errors.Join(err, host.Ready()); err != nil {
		t.Fatal(err)
	}
	return string(host.Said())
}

func TestLineOfAnInvocationGoesWithItsEndAndOthersToStderr(t *testing.T) {
	var stderr bytes.Buffer
	log := slog.New(newEnding(&stderr)).With("function", "f")
	spent := meter.New(meter.Options{}).Spent(session.Account{Tenant: "acme"})
	log.InfoContext(t.Context(), "of no invocation", spent...)
	said := invocation(t, func(ctx context.Context) {
		log.WarnContext(ctx, "in the middle", "error", "it went wrong")
		log.InfoContext(ctx, "request", spent...)
	})
	line, ok := meter.ReadLine([]byte(said))
	if !ok || line.Tenant != "acme" || !strings.Contains(said, `"msg":"request","function":"f"`) || strings.Count(said, "\n") != 1 {
		t.Errorf("said %q", said)
	}
	if got := stderr.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "in the middle") || !strings.Contains(got, "of no invocation") {
		t.Errorf("stderr has %q", got)
	}
}
