package lambda

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestFirstBytesComeBeforeTheEnd(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	inv, err := r.pool.Invoke(t.Context(), "echo", localtest.Payload(t, "", localtest.Query("mode", "stream", "n", "3", "gate", g.Path)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inv.Body.Close() }()
	if head, err := localtest.ReadHead(inv.Body); err != nil || head.StatusCode != 200 {
		t.Fatalf("head %+v, error %v", head, err)
	}
	held := g.Arrival()
	for n := 1; n <= 3; n++ {
		held.Pass() // the process writes chunk n only after this, and nothing more
		buf := make([]byte, 100)
		k, err := readSome(inv.Body, buf)
		if want := "chunk " + strconv.Itoa(n) + "\n"; string(buf[:k]) != want || err != nil {
			t.Fatalf("read %q, %v, want %q", buf[:k], err, want)
		}
	}
	if _, err := readSome(inv.Body, make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v, want EOF", err)
	}
}

func TestFailureInTheMiddleOfAnAnswer(t *testing.T) {
	tests := []struct {
		then, kind, message string
	}{
		{"error", "errorString", "the source dried up"},
		{"crash", ErrorExit, "exit status 4"},
	}
	for _, tt := range tests {
		t.Run(tt.then, func(t *testing.T) {
			r, g := newRig(t, nil), localtest.NewGate(t)
			inv, err := r.pool.Invoke(t.Context(), "echo", localtest.Payload(t, "", localtest.Query("mode", "stream", "n", "2", "then", tt.then, "gate", g.Path)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = inv.Body.Close() }()
			if head, err := localtest.ReadHead(inv.Body); err != nil || head.StatusCode != 200 {
				t.Fatalf("head %+v, error %v", head, err)
			}
			held := g.Arrival()
			held.Pass()
			held.Pass()
			// The test lets the process fail only after all that it wrote has arrived.
			const written = "chunk 1\nchunk 2\n"
			arrived := make([]byte, len(written))
			if _, err := io.ReadFull(inv.Body, arrived); err != nil || string(arrived) != written {
				t.Fatalf("read %q, %v", arrived, err)
			}
			held.Pass()
			var failure *FunctionError
			if rest, err := io.ReadAll(inv.Body); len(rest) != 0 || !errors.As(err, &failure) {
				t.Fatalf("after the chunks: %q, %v", rest, err)
			}
			if failure.Type != tt.kind || !strings.Contains(failure.Message, tt.message) || failure.Function != "echo" {
				t.Errorf("failure: %+v", failure)
			}
			if s := r.pool.Status()[0]; s.Failed != 1 {
				t.Errorf("counters: %+v", s)
			}
			if again := r.call("mode", "echo"); again.body != "hello" {
				t.Errorf("next invocation: %+v", again)
			}
		})
	}
}

func TestBigMessagesPassWhole(t *testing.T) {
	r := newRig(t, nil)
	big := strings.Repeat("0123456789abcde\n", 5<<20/16)
	if got := r.invoke(t.Context(), big, localtest.Query("mode", "echo")); got.body != big {
		t.Fatalf("echo of %d bytes: %d bytes, %v", len(big), len(got.body), got.readErr)
	}
	const size = 20<<20 + 17
	got := r.call("mode", "size", "n", strconv.Itoa(size))
	if len(got.body) != size || got.readErr != nil {
		t.Fatalf("%d bytes, want %d; %v", len(got.body), size, got.readErr)
	}
	for k := range size {
		if got.body[k] != 'a'+byte(k%23) {
			t.Fatalf("byte %d is %q", k, got.body[k])
		}
	}
}

func TestFunctionIsToldWhatLambdaTells(t *testing.T) {
	r := newRig(t, nil)
	var got map[string]string
	if err := json.Unmarshal([]byte(r.call("mode", "context").body), &got); err != nil {
		t.Fatal(err)
	}
	if len(got["request_id"]) != 36 || !strings.HasPrefix(got["trace"], "Root=1-") {
		t.Errorf("ids: %v", got)
	}
	if got["arn"] != "arn:aws:lambda:us-east-1:000000000000:function:echo" {
		t.Errorf("arn: %s", got["arn"])
	}
	if left, err := time.ParseDuration(got["left"]); err != nil || left <= 0 || left > localtest.Patience {
		t.Errorf("time left: %s", got["left"])
	}
}

func TestRuntimeAPIRefuses(t *testing.T) {
	r := newRig(t, nil)
	r.call("mode", "echo")
	r.settled(1)
	var id string
	for i := range r.pool.functions["echo"].instances {
		id = i.id
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.pool.listener.Addr().String())
		},
	}}
	tests := []struct {
		name, method, path string
		status             int
		kind               string
	}{
		{"unknown instance", "GET", "/echo-0/2018-06-01/runtime/invocation/next", 403, "UnknownInstance"},
		{"unknown invocation", "POST", "/" + id + "/2018-06-01/runtime/invocation/0/response", 400, "InvalidRequestID"},
		{"error of unknown invocation", "POST", "/" + id + "/2018-06-01/runtime/invocation/0/error", 400, "InvalidRequestID"},
		{"late init error", "POST", "/" + id + "/2018-06-01/runtime/init/error", 403, "InvalidStateTransition"},
		{"unknown call", "POST", "/" + id + "/2018-06-01/runtime/invocation/0/other", 404, "NotFound"},
		{"wrong method", "POST", "/" + id + "/2018-06-01/runtime/nothing", 404, "NotFound"},
		{"other version", "GET", "/" + id + "/2015-03-31/runtime/invocation/next", 404, "NotFound"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://local"+tt.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			var body map[string]string
			if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status || body["errorType"] != tt.kind {
				t.Errorf("%d %v, want %d %s", resp.StatusCode, body, tt.status, tt.kind)
			}
		})
	}
}
