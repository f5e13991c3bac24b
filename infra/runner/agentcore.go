package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// listenAt is the variable with the address at which a runner waits for its invitation.
const listenAt = "DORMOUSE_LISTEN"

const (
	// sessionLife is how long AgentCore lets a session live. The session has begun before
	// its first request comes.
	sessionLife   = 8*time.Hour - time.Minute
	maxInvitation = 1 << 20
)

// visit is a session of an AgentCore runtime, which has one box. Its two routes are the
// contract of such a runtime: an invocation is the invitation, and a ping asks whether the
// session has work. AgentCore ends a session that has none.
type visit struct {
	base environment
	log  *slog.Logger
	ctx  context.Context // of the box
	over chan fleet.Status

	mu    sync.Mutex
	event *fleet.Invitation // nil before the first invocation
}

// serveSession waits for an invitation, and runs its box. The error says how the box ended.
func serveSession(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	v := &visit{base: ownEnvironment(), log: log, ctx: ctx, over: make(chan fleet.Status, 1)}
	address := v.base[listenAt]
	forget("DORMOUSE_")
	forget("AWS_")
	if err := becomeSubreaper(); err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("wait for the invitation of a box: %w", err)
	}
	log.Info("waiting for an invitation", "address", l.Addr().String())
	s := &http.Server{Handler: v.routes(), ReadHeaderTimeout: stopTime}
	defer func() { _ = s.Close() }()
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case end := <-v.over:
		if end.ExitCode != 0 {
			return errors.New(end.Reason)
		}
		return nil
	case err := <-failed:
		return fmt.Errorf("wait for the invitation of a box: %w", err)
	case <-ctx.Done():
	}
	if v.invited() {
		<-v.over // the box says bye first
	}
	return nil
}

func (v *visit) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /invocations", v.invite)
	mux.HandleFunc("GET /ping", v.ping)
	return mux
}

func (v *visit) invited() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.event != nil
}

// invite begins the box of an invitation. It accepts a repeat of the same invitation and
// refuses any other, because the session belongs to the first box.
func (v *visit) invite(w http.ResponseWriter, r *http.Request) {
	var i fleet.Invitation
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInvitation)).Decode(&i)
	if err != nil || i.Task == "" || i.Box == "" {
		http.Error(w, "the body is no invitation", http.StatusBadRequest)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.event != nil && v.event.Task != i.Task {
		http.Error(w, "the session has the box of another task", http.StatusConflict)
		return
	}
	if v.event == nil {
		v.event = &i
		go func() { v.over <- (&guest{base: v.base, log: v.log}).host(v.ctx, i, time.Now().Add(sessionLife)) }()
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{}")) // the caller may have gone
}

// ping answers that the session is busy, from its invitation on. The session ends with
// this program.
func (v *visit) ping(w http.ResponseWriter, _ *http.Request) {
	status := "Healthy"
	if v.invited() {
		status = "HealthyBusy"
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"status":%q,"time_of_last_update":%d}`, status, time.Now().Unix())
}
