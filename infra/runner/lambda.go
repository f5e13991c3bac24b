package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// runtimeAPI is the variable with the address of Lambda's Runtime API, set only in a Lambda
// function.
const runtimeAPI = "AWS_LAMBDA_RUNTIME_API"

// bootstrap is the runtime of the Lambda function for boxes. bootstrap begins the response to an
// invocation before it starts any server, and ends the response after all servers have ended. In
// between Lambda accepts no other response and hands out no other invocation, so that a server
// cannot answer in the place of bootstrap.
type bootstrap struct {
	api    string
	client *http.Client
	log    *slog.Logger
}

// serveInvocations handles invocations until the process is told to stop. Before serveInvocations
// starts anything, it removes the function's credentials from the environment.
func serveInvocations(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bootstrap{api: os.Getenv(runtimeAPI), client: &http.Client{}, log: log}
	for _, prefix := range []string{"AWS_", "_AWS_", "_X_AMZN_", "_HANDLER"} {
		forget(prefix)
	}
	base := ownEnvironment()
	forget("DORMOUSE_")
	for name, value := range map[string]string{"DORMOUSE_CACHE": os.TempDir() + "/dormouse", "HOME": os.TempDir()} {
		if base[name] == "" {
			base[name] = value
		}
	}
	if err := os.Setenv("HOME", base["HOME"]); err != nil {
		return err
	}
	if err := becomeSubreaper(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := b.serve(ctx, base); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// serve takes one invocation and responds to it. The error is one of the Runtime API; the response
// reports a failure of the box.
func (b *bootstrap) serve(ctx context.Context, base environment) error {
	id, deadline, event, err := b.next(ctx)
	if err != nil {
		return fmt.Errorf("get the next invocation: %w", err)
	}
	held, err := b.hold(id)
	if err != nil {
		return fmt.Errorf("begin the response: %w", err)
	}
	var i fleet.Invitation
	end := fleet.Status{State: fleet.Stopped, ExitCode: exitFailed, Reason: "the event is no invitation"}
	if err := json.Unmarshal(event, &i); err == nil && i.Box != "" {
		end = b.host(ctx, base, i, deadline)
	}
	if err := held.finish(end); err != nil {
		return fmt.Errorf("end the response: %w", err)
	}
	return nil
}

// next blocks until the Runtime API returns an invocation. The result event is the payload.
func (b *bootstrap) next(ctx context.Context) (id string, deadline time.Time, event []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.api+"/2018-06-01/runtime/invocation/next", http.NoBody)
	if err != nil {
		return "", time.Time{}, nil, err
	}
	res, err := b.client.Do(r)
	if err != nil {
		return "", time.Time{}, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	event, err = io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	if err != nil {
		return "", time.Time{}, nil, err
	}
	ms, err := strconv.ParseInt(res.Header.Get("Lambda-Runtime-Deadline-Ms"), 10, 64)
	if err != nil {
		return "", time.Time{}, nil, fmt.Errorf("the invocation has no deadline: %w", err)
	}
	return res.Header.Get("Lambda-Runtime-Aws-Request-Id"), time.UnixMilli(ms), event, nil
}

// held is a response that has begun and has not ended.
type held struct {
	to   *io.PipeWriter
	done chan error
}

// hold begins the response to an invocation: it sends the header and a space before the JSON.
func (b *bootstrap) hold(id string) (*held, error) {
	from, to := io.Pipe()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+b.api+"/2018-06-01/runtime/invocation/"+id+"/response", from)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Lambda-Runtime-Function-Response-Mode", "streaming")
	h := &held{to: to, done: make(chan error, 1)}
	go func() {
		res, err := b.client.Do(r)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusAccepted {
				err = fmt.Errorf("status %d", res.StatusCode)
			}
		}
		_ = from.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		h.done <- err
	}()
	_, err = to.Write([]byte(" "))
	return h, err
}

// finish ends the response. The status must contain no secrets, because Lambda copies it into a
// report.
func (h *held) finish(end fleet.Status) error {
	if err := json.NewEncoder(h.to).Encode(end); err != nil {
		return err
	}
	_ = h.to.Close() // never fails
	return <-h.done
}
