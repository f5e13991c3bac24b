// Program echofn is the function of the tests: an unmodified lambda.Start loop that
// does what the query parameter "mode" says.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

func main() {
	var options []lambda.Option
	switch os.Getenv("ECHO_TERM") {
	case "ignore":
		signal.Ignore(syscall.SIGTERM)
	case "handle":
		options = append(options, lambda.WithEnableSIGTERM(func() {
			fmt.Println("told to end")
			os.Exit(0)
		}))
	}
	switch os.Getenv("ECHO_INIT") {
	case "exit":
		os.Exit(7)
	case "hang":
		select {}
	case "report":
		reportInit()
		os.Exit(1)
	case "report-stay":
		reportInit()
		select {}
	}
	lambda.StartWithOptions(handle, options...)
}

func reportInit() {
	resp, err := http.Post("http://"+os.Getenv("AWS_LAMBDA_RUNTIME_API")+"/2018-06-01/runtime/init/error", "application/json",
		strings.NewReader(`{"errorType":"Config.Missing","errorMessage":"no table name"}`))
	if err != nil {
		panic(err)
	}
	resp.Body.Close()
}

type answer = events.APIGatewayProxyStreamingResponse

func handle(ctx context.Context, e events.APIGatewayProxyRequest) (any, error) {
	q := e.QueryStringParameters
	switch q["mode"] {
	case "event":
		return ok(asJSON(e)), nil
	case "env":
		return ok(asJSON(os.Environ())), nil
	case "context":
		return ok(asJSON(describe(ctx))), nil
	case "print":
		fmt.Println("to stdout")
		fmt.Fprint(os.Stderr, "to stderr\n"+strings.Repeat("x", 100_000)+"\n")
		return ok(nil), nil
	case "child", "daemon":
		child := exec.Command("sleep", "1000")
		if q["mode"] == "daemon" {
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			child.Stdout = os.Stdout
		}
		if err := child.Start(); err != nil {
			return nil, err
		}
		return ok([]byte(strconv.Itoa(child.Process.Pid))), nil
	case "crash":
		for range 1000 {
			fmt.Fprintln(os.Stderr, "last words")
		}
		os.Exit(3)
	case "panic":
		panic("no way on")
	case "error":
		return nil, errors.New("it went wrong")
	case "dry":
		return dry{}, nil
	case "empty":
		return strings.NewReader(""), nil
	case "slow":
		select {}
	case "linger":
		a := ok([]byte("answered"))
		a.Body = lingering{a.Body}
		return a, nil
	case "hold":
		pass(q["gate"], 1)
	case "stream":
		n, err := strconv.Atoi(q["n"])
		if err != nil {
			return nil, err
		}
		a := ok(nil)
		a.Headers["Content-Type"] = "text/event-stream"
		a.Body = &gated{gate: q["gate"], left: n, then: q["then"]}
		return a, nil
	case "size":
		n, err := strconv.ParseInt(q["n"], 10, 64)
		if err != nil {
			return nil, err
		}
		a := ok(nil)
		a.Body = io.LimitReader(&pattern{}, n)
		return a, nil
	case "head":
		a, body := ok([]byte("{}")), []byte(e.Body)
		if e.IsBase64Encoded {
			var err error
			if body, err = base64.StdEncoding.DecodeString(e.Body); err != nil {
				return nil, err
			}
		}
		return a, json.Unmarshal(body, a)
	case "buffered":
		return events.APIGatewayProxyResponse{
			StatusCode: 201, Headers: map[string]string{"X-Kind": "buffered", "Content-Type": "text/plain"},
			Body: base64.StdEncoding.EncodeToString([]byte("\xff\x00binary")), IsBase64Encoded: true,
		}, nil
	case "nonsense":
		return "this is no proxy response", nil
	}
	return echo(e)
}

func echo(e events.APIGatewayProxyRequest) (*answer, error) {
	body := []byte(e.Body)
	if e.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(e.Body); err != nil {
			return nil, err
		}
	}
	return ok(body), nil
}

func ok(body []byte) *answer {
	return &answer{
		StatusCode: 200, Body: bytes.NewReader(body),
		Headers: map[string]string{"X-Pid": strconv.Itoa(os.Getpid())},
	}
}

func asJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func describe(ctx context.Context) map[string]string {
	lc, _ := lambdacontext.FromContext(ctx)
	deadline, _ := ctx.Deadline()
	trace, _ := ctx.Value("x-amzn-trace-id").(string)
	return map[string]string{
		"request_id": lc.AwsRequestID, "arn": lc.InvokedFunctionArn, "trace": trace,
		"left": time.Until(deadline).String(),
	}
}

// pass tells the gate, a unix socket of the test, that this process has arrived, and
// waits until the gate has let it pass n times.
func pass(gate string, n int) net.Conn {
	conn, err := net.Dial("unix", gate)
	if err != nil {
		panic(err)
	}
	wait(conn, n)
	return conn
}

func wait(conn net.Conn, n int) {
	if _, err := io.ReadFull(conn, make([]byte, n)); err != nil {
		panic(err)
	}
}

// gated is a body of chunks "chunk 1\n", "chunk 2\n" … and of the failure that follows
// them, if any. Each chunk waits for the gate, and so does the failure.
type gated struct {
	gate string
	conn net.Conn
	sent int
	left int
	then string
}

func (g *gated) Read(p []byte) (int, error) {
	if g.left == 0 {
		if g.then != "" {
			wait(g.conn, 1)
		}
		switch g.then {
		case "error":
			return 0, errors.New("the source dried up")
		case "crash":
			os.Exit(4)
		}
		return 0, io.EOF
	}
	if g.conn == nil {
		g.conn = pass(g.gate, 1)
	} else {
		wait(g.conn, 1)
	}
	g.left--
	g.sent++
	return copy(p, fmt.Sprintf("chunk %d\n", g.sent)), nil
}

// dry is an answer that fails before its first byte.
type dry struct{}

func (dry) Read([]byte) (int, error) { return 0, errors.New("nothing there") }

// lingering is a body whose Close does not return.
type lingering struct{ io.Reader }

func (lingering) Close() error { select {} }

// pattern is endless: byte k is 'a' + k mod 23, so that a gap shows whatever the
// buffer size.
type pattern struct{ at int64 }

func (s *pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a' + byte(s.at%23)
		s.at++
	}
	return len(p), nil
}
