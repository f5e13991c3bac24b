package localtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/aws/aws-lambda-go/events"
)

// echo is the program of the function, which is built once.
var echo struct {
	dir  string
	once sync.Once
	err  error
}

const echoPackage = "github.com/dormouse-mcp/dormouse/infra/local/localtest/testdata/echofn"

// Main runs the tests of a package that uses [EchoProgram] and returns the exit code
// for its TestMain.
func Main(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "echofn")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	echo.dir = dir
	return m.Run()
}

// EchoProgram returns the path of a function of the REST API whose behaviour the query
// parameter "mode" selects; see testdata/echofn. The package's TestMain must call
// [Main].
func EchoProgram(t testing.TB) string {
	t.Helper()
	program := filepath.Join(echo.dir, "echofn")
	echo.once.Do(func() {
		out, err := exec.Command("go", "build", "-o", program, echoPackage).CombinedOutput() //nolint:noctx // outlives the test that comes first
		if err != nil {
			echo.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if echo.err != nil {
		t.Fatal(echo.err)
	}
	return program
}

// Query returns query parameters from pairs such as "mode", "hold", "gate", path.
func Query(pairs ...string) map[string]string {
	q := map[string]string{}
	for k := 0; k+1 < len(pairs); k += 2 {
		q[pairs[k]] = pairs[k+1]
	}
	return q
}

// Payload returns an event for [EchoProgram].
func Payload(t testing.TB, body string, query map[string]string) []byte {
	t.Helper()
	raw, err := json.Marshal(events.APIGatewayProxyRequest{HTTPMethod: "POST", Path: "/x", Body: body, QueryStringParameters: query})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// ReadHead reads the head of a streamed answer, and no byte of the body.
func ReadHead(from io.Reader) (head events.APIGatewayProxyResponse, err error) {
	end := make([]byte, 8)
	var raw []byte
	for one := make([]byte, 1); !bytes.HasSuffix(raw, end); {
		if _, err := io.ReadFull(from, one); err != nil {
			return head, err
		}
		raw = append(raw, one[0])
	}
	return head, json.Unmarshal(bytes.TrimSuffix(raw, end), &head)
}

// Gate holds invocations with "mode" hold or stream until the test releases them.
type Gate struct {
	Path string // the query parameter "gate"

	t  testing.TB
	in chan net.Conn
}

// NewGate opens a gate until the end of the test.
func NewGate(t testing.TB) *Gate {
	t.Helper()
	g := &Gate{t: t, Path: filepath.Join(t.TempDir(), "g"), in: make(chan net.Conn, 100)}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", g.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.in <- conn
		}
	}()
	return g
}

// Arrival waits until one more invocation is held, and returns it.
func (g *Gate) Arrival() *Held {
	g.t.Helper()
	conn := Wait(g.t, g.in)
	g.t.Cleanup(func() { _ = conn.Close() })
	return &Held{t: g.t, conn: conn}
}

// Held is an invocation at a [Gate].
type Held struct {
	t    testing.TB
	conn net.Conn
}

// Pass releases the invocation: to its end with "mode" hold, to its next chunk with "mode"
// stream, and after the last chunk to the failure that "then" names.
func (h *Held) Pass() {
	h.t.Helper()
	if _, err := h.conn.Write([]byte{1}); err != nil {
		h.t.Fatal(err)
	}
}
