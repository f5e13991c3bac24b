//go:build conformance

package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// killRounds is how often the test kills each remote server in the middle of a call, at
// each address. In every second round the test pauses the server before the call, and
// kills it after unread, so the server never reads the call.
const (
	killRounds = 6
	unread     = 1500 * time.Millisecond
)

// The suite's servers are remote servers of each era. The test kills each in the middle
// of a call, makes a call while it is down, and starts it again. Each call ends with its
// result, or with an error that says what is not known. The client keeps its session.
func TestRemoteServersAreKilledInTheMiddleOfCalls(t *testing.T) {
	binaries := buildServers(t)
	for name, far := range map[string]struct {
		binary string
		args   []string
	}{
		"2025-11-25":            {binaries["legacy"], nil},
		"sessions of both eras": {binaries["dual"], []string{"-stateless=false"}},
		"2026-07-28":            {binaries["dual"], nil},
	} {
		t.Run(name, func(t *testing.T) {
			address := commontest.FreeAddress(t)
			up := startAt(t, address, far.binary, far.args...)
			url := startRemotes(t, map[string]string{"far": "http://" + address + "/"})["far"]
			tool := "test_tool_with_progress"
			for at, name := range map[string]string{url: tool, strings.Replace(url, "/far/mcp", "/mcp", 1): "far__" + tool} {
				up = killedInCalls(t, at, name, up, func() *programtest.Process { return startAt(t, address, far.binary, far.args...) })
			}
		})
	}
}

// killedInCalls calls a tool, again and again, and kills its server each time.
func killedInCalls(t *testing.T, url, tool string, up *programtest.Process, restart func() *programtest.Process) *programtest.Process {
	t.Helper()
	progress := make(chan struct{}, 100)
	var calls atomic.Int64
	client := mcp.NewClient(&mcp.Implementation{Name: "killer", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			if r.Params.ProgressToken == fmt.Sprint("p", calls.Load()) { // it may come later than the answer
				progress <- struct{}{}
			}
		},
	})
	// This client uses a transport with sessions: 2026-07-28 has no session that could
	// survive.
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, MaxRetries: -1}, &mcp.ClientSessionOptions{ProtocolVersion: revision2025})
	commontest.OK(t, err)
	defer func() { _ = s.Close() }() // the server may be gone
	id := s.ID()
	call := func() (string, error) {
		p := &mcp.CallToolParams{Name: tool, Arguments: map[string]any{}}
		p.SetProgressToken(fmt.Sprint("p", calls.Add(1)))
		r, err := s.CallTool(t.Context(), p)
		if err != nil {
			return "", err
		}
		if r.IsError {
			return "", r.GetError()
		}
		return "a result", nil
	}
	unknown := 0
	for round := range killRounds {
		ended, late := make(chan error, 1), make(<-chan time.Time)
		calls.Add(1) // so that what is still on its way is not of this call
		for len(progress) > 0 {
			<-progress
		}
		if round%2 == 1 {
			up.Pause()
			late = time.After(unread)
		}
		go func() {
			_, err := call()
			ended <- err
		}()
		select {
		case <-progress:
		case <-late:
		case err := <-ended: // on a machine that is busy the call may be over already
			ended <- err
		}
		up.Kill()
		switch err := <-ended; {
		case err == nil && round%2 == 0:
		case err != nil && strings.Contains(err.Error(), "is not known"):
			unknown++
		case err != nil && strings.Contains(err.Error(), "cannot be reached"): // it was killed before Dormouse reached it
		default:
			t.Errorf("round %d: the call ended with %v", round, err)
		}
		// A connection of before, whose end Dormouse has not noticed yet, takes the call and ends.
		if _, err := call(); err == nil || !strings.Contains(err.Error(), "cannot be reached") && !strings.Contains(err.Error(), "is not known") {
			t.Errorf("round %d: a call of a server that is away ended with %v", round, err)
		}
		up = restart()
		if got, err := call(); err != nil {
			t.Fatalf("round %d: after the server came back a call ended with %q, %v", round, got, err)
		}
	}
	if unknown == 0 {
		t.Errorf("in %d rounds no call was interrupted", killRounds)
	}
	if s.ID() != id {
		t.Errorf("the client's session became %s, from %s", s.ID(), id)
	}
	return up
}
