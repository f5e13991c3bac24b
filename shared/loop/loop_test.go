package loop_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/loop"
)

// process serves a handler, and returns the host's ends of its connections and how
// Serve ended.
func process(t *testing.T, n int, h loop.Handler) (hosts []*loop.Conn, ended chan error) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket) //nolint:noctx // it opens at once
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ended = make(chan error, 1)
	go func() { ended <- loop.Serve(t.Context(), socket, "echo-1", n, h, nil) }()
	for range n {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil || r.URL.Path != "/echo-1/"+loop.Path || r.Header.Get("Upgrade") != loop.Protocol {
			t.Fatalf("asked for %+v, %v", r, err)
		}
		host, err := loop.NewConn(conn)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, host)
	}
	return hosts, ended
}

// call is an invocation with a payload, and what came of it.
func call(t *testing.T, c *loop.Conn, payload string) *loop.Answer {
	t.Helper()
	if err := c.Hand(loop.Invocation{ID: "i", ARN: "arn", Trace: "Root=1", Deadline: time.Now().Add(time.Minute), Payload: []byte(payload)}); err != nil {
		t.Fatal(err)
	}
	a, err := c.Answer()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// ready waits until there can be another call.
func ready(t *testing.T, c *loop.Conn) {
	t.Helper()
	if err := c.Ready(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, a *loop.Answer) string {
	t.Helper()
	body, err := io.ReadAll(a)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestAHandlerIsToldWhatLambdaTells(t *testing.T) {
	deadline := time.UnixMilli(time.Now().Add(time.Minute).UnixMilli())
	got := make(chan loop.Invocation, 1)
	hosts, _ := process(t, 1, func(ctx context.Context, inv loop.Invocation) (io.Reader, error) {
		inv.Payload = bytes.Clone(inv.Payload)
		got <- inv
		if until, ok := ctx.Deadline(); !ok || !until.Equal(deadline) {
			t.Errorf("the context ends at %v, want %v", until, deadline)
		}
		return strings.NewReader(""), nil
	})
	want := loop.Invocation{ID: "id", ARN: "arn", Trace: "Root=2", Deadline: deadline, Payload: []byte(strings.Repeat("x", 100_000))}
	if err := hosts[0].Hand(want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, <-got); d != "" {
		t.Error(d)
	}
}

func TestAnswersAreReadAsTheyWereWritten(t *testing.T) {
	hosts, _ := process(t, 1, func(_ context.Context, inv loop.Invocation) (io.Reader, error) {
		return bytes.NewReader(bytes.Clone(inv.Payload)), nil
	})
	for _, size := range []int{0, 1, 32<<10 - 1, 32 << 10, 32<<10 + 1, 1 << 20, 3} {
		want := strings.Repeat("abc", size/3+1)[:size]
		a := call(t, hosts[0], want)
		if got := read(t, a); got != want || a.Broken() != nil || a.Failed != nil {
			t.Errorf("%d bytes: %d bytes came back, %v, %v", size, len(got), a.Broken(), a.Failed)
		}
		ready(t, hosts[0])
	}
}

func TestWhatIsThereIsOneAnswerAsAWhole(t *testing.T) {
	hosts, _ := process(t, 1, loop.Function(func(_ context.Context, e map[string]string) (string, error) { return e["say"] + "<", nil }, nil))
	for _, say := range []string{"a", "b"} { // the second shows that the first was read to its end
		if err := hosts[0].Hand(loop.Invocation{Deadline: time.Now().Add(time.Minute), Payload: []byte(`{"say":"` + say + `"}`)}); err != nil {
			t.Fatal(err)
		}
		if err := hosts[0].Await(); err != nil {
			t.Fatal(err)
		}
		a, err := hosts[0].Answer()
		if err != nil {
			t.Fatal(err)
		}
		body, ok := a.Whole()
		if want := "\"" + say + "<\"\n"; string(body) != want || !ok || a.ContentType != "application/json" {
			t.Errorf("%q, %t, %q; want %q", body, ok, a.ContentType, want)
		}
	}
}

// steps is an answer whose pieces come when they are sent.
type steps struct{ pieces chan string }

func (s steps) Read(p []byte) (int, error) {
	piece, ok := <-s.pieces
	if !ok {
		return 0, errors.New("the source dried up")
	}
	return copy(p, piece), nil
}

func (steps) ContentType() string { return "text/steps" }

func TestAStreamComesWhileItIsMadeAndSaysHowItBroke(t *testing.T) {
	s := steps{make(chan string)}
	hosts, _ := process(t, 1, func(context.Context, loop.Invocation) (io.Reader, error) { return s, nil })
	if err := hosts[0].Hand(loop.Invocation{Deadline: time.Now().Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	s.pieces <- "one"
	a, err := hosts[0].Answer()
	if err != nil || a.ContentType != "text/steps" {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, ok := a.Whole(); ok {
		t.Error("what has not ended is whole")
	}
	buf := make([]byte, 100)
	if n, err := a.Read(buf); string(buf[:n]) != "one" || err != nil {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	s.pieces <- "two"
	close(s.pieces)
	if rest := read(t, a); rest != "two" || a.Broken() == nil || a.Broken().Type != "errorString" || a.Broken().Message != "the source dried up" {
		t.Errorf("rest %q, broken by %+v", rest, a.Broken())
	}
}

// slowEnd is an answer that takes its time to close.
type slowEnd struct {
	io.Reader
	closing chan struct{}
}

func (s slowEnd) Close() error {
	<-s.closing
	return nil
}

func TestAnAnswerEndsBeforeItsProcessIsReady(t *testing.T) {
	s := slowEnd{strings.NewReader("all"), make(chan struct{})}
	hosts, _ := process(t, 1, func(context.Context, loop.Invocation) (io.Reader, error) { return s, nil })
	a := call(t, hosts[0], "")
	if body, ok := a.Whole(); ok {
		t.Errorf("it is whole: %q", body)
	}
	if got := read(t, a); got != "all" {
		t.Errorf("read %q", got)
	}
	close(s.closing)
	ready(t, hosts[0])
}

func TestWhatAnInvocationSaysComesWithItsEnd(t *testing.T) {
	for name, whole := range map[string]bool{"of an answer that is there": true, "of one that is streamed": false} {
		t.Run(name, func(t *testing.T) {
			ctxs := make(chan context.Context, 1)
			says := func(ctx context.Context, _ loop.Invocation) (io.Reader, error) {
				if !loop.Say(ctx, []byte("one\n")) || !loop.Say(context.WithoutCancel(ctx), []byte("two\n")) {
					t.Error("nothing can be said")
				}
				if loop.Say(ctx, make([]byte, 2<<20)) {
					t.Error("anything can be said")
				}
				ctxs <- ctx
				return strings.NewReader("answer"), nil
			}
			handler := says
			if whole {
				handler = loop.Function(func(ctx context.Context, _ any) (string, error) {
					_, err := says(ctx, loop.Invocation{})
					return "answer", err
				}, nil)
			}
			hosts, _ := process(t, 1, handler)
			a := call(t, hosts[0], "{}")
			if !whole {
				read(t, a)
				ready(t, hosts[0])
			} else if _, ok := a.Whole(); !ok {
				t.Error("it is not whole")
			}
			if said := string(hosts[0].Said()); said != "one\ntwo\n" {
				t.Errorf("said %q", said)
			}
			if said := hosts[0].Said(); said != nil {
				t.Errorf("said again %q", said)
			}
			if loop.Say(<-ctxs, []byte("late")) || loop.Say(t.Context(), []byte("elsewhere")) {
				t.Error("something is said of no invocation")
			}
		})
	}
}

func TestAnErrorIsReportedAndTheProcessLivesOn(t *testing.T) {
	hosts, _ := process(t, 1, loop.Function(func(_ context.Context, e string) (any, error) {
		if e == "bad" {
			return nil, errors.New("it went wrong")
		}
		return nil, nil
	}, nil))
	a := call(t, hosts[0], `"bad"`)
	if a.Failed == nil || a.Failed.Type != "errorString" || a.Failed.Message != "it went wrong" {
		t.Errorf("report %+v", a.Failed)
	}
	ready(t, hosts[0])
	if a := call(t, hosts[0], `"good"`); a.Failed != nil || read(t, a) != "null\n" {
		t.Errorf("the next one: %+v", a.Failed)
	}
	ready(t, hosts[0])
	if a := call(t, hosts[0], `7`); a.Failed == nil || a.Failed.Type != "UnmarshalTypeError" {
		t.Errorf("what is no event: %+v", a.Failed)
	}
}

func TestAPanicIsReportedAndEndsTheProcess(t *testing.T) {
	hosts, ended := process(t, 1, func(context.Context, loop.Invocation) (io.Reader, error) { panic("no way on") })
	a := call(t, hosts[0], "")
	if a.Failed == nil || a.Failed.Type != "string" || a.Failed.Message != "no way on" || len(a.Failed.Stack) == 0 {
		t.Errorf("report %+v", a.Failed)
	}
	if err := <-ended; err == nil {
		t.Error("it goes on")
	}
}

func TestConnectionsAreServedAtTheSameTime(t *testing.T) {
	met := make(chan struct{})
	hosts, _ := process(t, 2, func(context.Context, loop.Invocation) (io.Reader, error) {
		select {
		case met <- struct{}{}:
		case <-met:
		}
		return strings.NewReader("met"), nil
	})
	for _, h := range hosts {
		if err := h.Hand(loop.Invocation{Deadline: time.Now().Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range hosts {
		a, err := h.Answer()
		if err != nil || read(t, a) != "met" {
			t.Errorf("%v", err)
		}
	}
}

func TestAWaitForAnAnswerCanBeLeftAndTakenUpAgain(t *testing.T) {
	s := steps{make(chan string)}
	hosts, _ := process(t, 1, func(context.Context, loop.Invocation) (io.Reader, error) { return s, nil })
	if err := hosts[0].Hand(loop.Invocation{Deadline: time.Now().Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	hosts[0].Interrupt()
	var timeout net.Error
	if err := hosts[0].Await(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("await: %v", err)
	}
	hosts[0].Resume()
	s.pieces <- "late"
	if err := hosts[0].Await(); err != nil {
		t.Fatal(err)
	}
	if _, err := hosts[0].Answer(); err != nil {
		t.Error(err)
	}
}

func TestAProcessEndsWhenItIsCutOff(t *testing.T) {
	hosts, ended := process(t, 2, func(context.Context, loop.Invocation) (io.Reader, error) { return strings.NewReader(""), nil })
	if err := hosts[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("it ended with %v", err)
	}
}

func FuzzConnSurvivesAnyAnswer(f *testing.F) {
	f.Add([]byte("h\x00\x00\x00\x01td\x00\x00\x00\x02hie\x00\x00\x00\x00r\x00\x00\x00\x00"))
	f.Add([]byte("h\x00\x00\x00\x00e\x00\x00\x00\x00r\x00\x00\x00\x02ok"))
	f.Add([]byte("h\x00\x00\x00\x00e\x00\x00\x00\x00r\xff\xff\xff\xff"))
	f.Add([]byte("f\x00\x00\x00\x02{}"))
	f.Add([]byte("h\x00\x00\x00\x00e\x00\x00\x00\x02{}"))
	f.Add([]byte("d\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, said []byte) {
		here, there := net.Pipe()
		defer func() { _ = here.Close() }()
		go func() {
			_, _ = io.CopyN(io.Discard, there, int64(len("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+loop.Protocol+"\r\n\r\n")))
			_, _ = there.Write(said)
			_ = there.Close()
		}()
		c, err := loop.NewConn(here)
		if err != nil {
			t.Fatal(err)
		}
		if c.Await() != nil {
			return
		}
		a, err := c.Answer()
		if err != nil || a.Failed != nil {
			return
		}
		if body, ok := a.Whole(); ok && len(body) > len(said) {
			t.Errorf("%d bytes of %d", len(body), len(said))
		}
		if body, _ := io.ReadAll(a); len(body) > len(said) {
			t.Errorf("%d bytes of %d", len(body), len(said))
		}
	})
}
