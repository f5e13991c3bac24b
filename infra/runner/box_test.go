package runner

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestAServerGetsTheValuesOfItsSecrets(t *testing.T) {
	t.Setenv("DORMOUSE_ENV_TOKEN", "t0p")
	pipe := filepath.Join(t.TempDir(), "pipe")
	commontest.OK(t, syscall.Mkfifo(pipe, 0o600))
	s := serversfile.Server{
		Name: "x", Command: "/bin/sh", Args: []string{"-c", `printf %s "$TOKEN" > "$0"; cat`, pipe}, Env: map[string]string{"TOKEN": "ssm:/x/y"},
		StartupTimeout: time.Minute, ToolTimeout: time.Minute, AnswerTimeout: time.Minute,
	}
	log := slog.New(slog.DiscardHandler)
	b := newBox(s, setup{work: t.TempDir(), cache: t.TempDir(), env: ownEnvironment(), own: ownEnvironment()}, log)
	b.link = runner.New(runner.Config{
		Box: "t/x", Gen: 1, Executor: b, Log: log,
		Dial: func(context.Context, string, http.Header) (runner.Conn, error) {
			return nil, errors.New("nobody is there")
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- live(ctx, b.link, nil, func() *prepared { return &prepared{box: b, log: log} }) }()
	b.Deliver(runner.Delivery{
		ID: "d", Session: storage.ID("s"), Principal: "p", Init: json.RawMessage(`{}`),
		Raw: []byte(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`), // no call, for whose end a box would wait
	})
	got, err := os.ReadFile(pipe) // waits until somebody writes
	commontest.OK(t, err)
	commontest.EqualIn(t, "the server has the token", "t0p", string(got))
	cancel()
	if err := <-ended; err != nil {
		t.Log(err) // the relay was never there
	}
}
