package runner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// newSession starts a runner as the container of an AgentCore runtime. It returns the
// runner's process, and where it takes requests.
func newSession(t *testing.T) (cmd *exec.Cmd, url string) {
	t.Helper()
	cmd = runnerWith(t, "HOME="+t.TempDir(), listenAt+"=127.0.0.1:0")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, cmd)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var said struct{ Address string }
		if json.Unmarshal(lines.Bytes(), &said) == nil && said.Address != "" {
			url = "http://" + said.Address
			break
		}
	}
	go func() { _, _ = io.Copy(t.Output(), out) }()
	if url == "" {
		t.Fatal("the runner waits nowhere")
	}
	return cmd, url
}

func ask(t *testing.T, method, url string, body []byte) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func TestASessionHasOneBoxAndEndsWithIt(t *testing.T) {
	relay := newRelayStandIn(t, launchOf("http://127.0.0.1:1", time.Minute, time.Second))
	cmd, url := newSession(t)
	if _, answer := ask(t, http.MethodGet, url+"/ping", nil); !strings.Contains(answer, `"Healthy"`) {
		t.Errorf("before its invitation it is %s", answer)
	}
	if status, _ := ask(t, http.MethodPost, url+"/invocations", []byte(`{"prompt":"hello"}`)); status != http.StatusBadRequest {
		t.Errorf("what is no invitation: %d", status)
	}
	relay.mu.Lock()
	relay.tokens, relay.calls = []string{"one"}, []string{"honest-one"}
	relay.mu.Unlock()
	for range 2 { // the answer to the first one was lost
		if status, answer := ask(t, http.MethodPost, url+"/invocations", invitation(t, relay, "one")); status != http.StatusOK {
			t.Errorf("the invitation: %d %s", status, answer)
		}
	}
	if status, _ := ask(t, http.MethodPost, url+"/invocations", invitation(t, relay, "two")); status != http.StatusConflict {
		t.Errorf("another invitation: %d", status)
	}
	if _, answer := ask(t, http.MethodGet, url+"/ping", nil); !strings.Contains(answer, `"HealthyBusy"`) {
		t.Errorf("with its box it is %s", answer)
	}
	if got := relay.result("honest-one"); !strings.Contains(got, "well") {
		t.Errorf("the call ended in %s", got)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the runner ended with %v", err)
		}
	case <-ctx.Done():
		t.Fatal("the runner does not end with its box")
	}
	relay.mu.Lock()
	defer relay.mu.Unlock()
	if relay.byes != 1 {
		t.Errorf("%d byes", relay.byes)
	}
}
