package lambda

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func TestFailureBeforeTheFirstByteIsTheInvocations(t *testing.T) {
	r := newRig(t, nil)
	got := r.call("mode", "dry")
	if got.failed == nil || got.failed.Type != "errorString" || got.failed.Message != "nothing there" {
		t.Fatalf("failure: %+v (%v)", got, got.failed)
	}
	if text := got.failed.Error(); text != "function echo: errorString: nothing there" {
		t.Errorf("text: %s", text)
	}
}

func TestEmptyAnswerIsNoFailure(t *testing.T) {
	r := newRig(t, nil)
	if got := r.call("mode", "empty"); got.failed != nil || got.readErr != nil || got.body != "" || got.err != nil {
		t.Fatalf("answer: %+v", got)
	}
}

// answerByHand begins the answer of the one held invocation, in place of its process.
func answerByHand(r *rig) net.Conn {
	r.t.Helper()
	var path string
	f := r.pool.functions["echo"]
	f.mu.Lock()
	for i := range f.instances {
		path = "/" + i.id + "/2018-06-01/runtime/invocation/" + i.inv.id + "/response"
	}
	f.mu.Unlock()
	conn, err := new(net.Dialer).DialContext(r.t.Context(), "tcp", r.pool.listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	say(r.t, conn, "POST "+path+" HTTP/1.1\r\nHost: local\r\nTransfer-Encoding: chunked\r\n\r\n")
	return conn
}

func say(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func TestAnswerThatBreaksOffWhileItsProcessLives(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	done := r.begin("mode", "hold", "gate", g.Path)
	g.Arrival()
	conn := answerByHand(r)
	say(t, conn, "5\r\nhello\r\n")
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	got := localtest.Wait(t, done)
	var failure *FunctionError
	if got.body != "hello" || !errors.As(got.readErr, &failure) || failure.Type != ErrorResponse {
		t.Fatalf("answer: %+v", got)
	}
	if e := r.await(FunctionCrash); e.Detail != "its answer broke off (signal: killed)" {
		t.Errorf("event: %+v", e)
	}
}

func TestAnswerUnderWayOutlivesItsProcess(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	done := r.begin("mode", "hold", "gate", g.Path)
	g.Arrival()
	conn := answerByHand(r)
	defer func() { _ = conn.Close() }()
	f := r.pool.functions["echo"]
	localtest.Eventually(t, "the answer to begin", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i := range f.instances {
			return i.inv.answering
		}
		return false
	})
	if err := syscall.Kill(r.instances()[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.await(FunctionCrash)
	say(t, conn, "5\r\nhello\r\n0\r\n\r\n")
	if got := localtest.Wait(t, done); got.body != "hello" || got.readErr != nil || got.failed != nil {
		t.Fatalf("answer: %+v", got)
	}
	if s := r.pool.Status()[0]; s.Invoked != 1 || s.Failed != 0 {
		t.Errorf("counters: %+v", s)
	}
}

func TestTimeoutInTheMiddleOfAnAnswer(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].Timeout = time.Second })
	g := localtest.NewGate(t)
	done := r.begin("mode", "stream", "n", "2", "gate", g.Path)
	g.Arrival().Pass()
	got := localtest.Wait(t, done)
	var failure *FunctionError
	if got.body != "chunk 1\n" || !errors.As(got.readErr, &failure) || failure.Type != ErrorTimeout {
		t.Fatalf("answer: %+v", got)
	}
}

func TestClosedBodyLetsTheFunctionRunOn(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	inv, err := r.pool.Invoke(t.Context(), "echo", localtest.Payload(t, "", localtest.Query("mode", "stream", "n", "3", "gate", g.Path)))
	if err != nil {
		t.Fatal(err)
	}
	held := g.Arrival()
	pid := r.instances()[0].PID
	if err := inv.Body.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		held.Pass()
	}
	r.settled(1)
	if got := r.call("mode", "echo").pid(t); got != pid {
		t.Fatalf("process %d answered, want %d", got, pid)
	}
	if s := r.pool.Status()[0]; s.Failed != 0 || s.Invoked != 2 {
		t.Errorf("counters: %+v", s)
	}
}

func TestCloseWakesAReader(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	inv, err := r.pool.Invoke(t.Context(), "echo", localtest.Payload(t, "", localtest.Query("mode", "stream", "n", "1", "gate", g.Path)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := localtest.ReadHead(inv.Body); err != nil {
		t.Fatal(err)
	}
	held := g.Arrival()
	read := make(chan error, 1)
	go func() {
		_, err := inv.Body.Read(make([]byte, 1))
		read <- err
	}()
	if err := inv.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if err := localtest.Wait(t, read); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatalf("Read: %v, want io.ErrClosedPipe", err)
	}
	held.Pass()
	r.settled(1)
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

func TestReadReport(t *testing.T) {
	tests := map[string]struct {
		raw  string
		want FunctionError
	}{
		"whole":    {`{"errorType":"A","errorMessage":"b","stackTrace":[]}`, FunctionError{Type: "A", Message: "b"}},
		"no type":  {`{"errorMessage":"b"}`, FunctionError{Type: "Runtime.Unknown", Message: "the function reported an error without saying which"}},
		"not JSON": {`<oops>`, FunctionError{Type: "Runtime.Unknown", Message: "the function reported an error without saying which"}},
		"empty":    {``, FunctionError{Type: "Runtime.Unknown", Message: "the function reported an error without saying which"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(&tt.want, readReport(strings.NewReader(tt.raw))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTraceIDsHaveTheFormOfXRay(t *testing.T) {
	at := time.Unix(0x5759e988, 0)
	if id := NewTraceID(at); !regexp.MustCompile(`^Root=1-5759e988-[0-9a-f]{24}$`).MatchString(id) {
		t.Errorf("%q", id)
	}
}
