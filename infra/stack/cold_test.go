//go:build cold

package stack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// starts is how often the test starts each function, in turns.
const starts = 20

// These are targets for the median of one function on an idle machine. Lambda's processors
// are slower, and its start has other parts; the test measures only Dormouse's part.
const (
	aimTime = 6 * time.Millisecond
	maxSize = 13_600_000 // bytes, for the processor that the template has by default
)

// coldEvents are the events of the deployed programs. Each makes its program read the table and
// find nothing.
func coldEvents() [][2]string {
	return [][2]string{{"http", "http-initialize"}, {"socket", "socket-tools-call"}, {"relay", "relay-hello"}, {"sweep", "sweep-schedule"}}
}

const coldSecret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// TestColdStarts prints how long each function's program takes for a cold start, from exec to
// the answer. Its DynamoDB answers at once. The time is that of this machine's processor, and
// the size that of the processor in the template.
func TestColdStarts(t *testing.T) {
	dir, deployed := t.TempDir(), t.TempDir()
	for _, of := range coldEvents() {
		build(t, filepath.Join(dir, of[0]), "../../functions/"+of[0])
		build(t, filepath.Join(deployed, of[0]), "../../functions/"+of[0], "GOOS=linux", "GOARCH=arm64")
	}
	table := httptest.NewServer(http.HandlerFunc(emptyTable))
	defer table.Close()
	measured := map[string][]time.Duration{}
	for range starts {
		for _, of := range coldEvents() {
			event, err := os.ReadFile(root("events", of[1]+".json"))
			commontest.OK(t, err)
			measured[of[0]] = append(measured[of[0]], start(t, filepath.Join(dir, of[0]), table.URL, event))
		}
	}
	for _, of := range coldEvents() {
		name := of[0]
		info, err := os.Stat(filepath.Join(deployed, name))
		commontest.OK(t, err)
		took := measured[name]
		slices.Sort(took)
		t.Logf("%s: %.1f MB on arm64; to the answer %s at least, %s in the median, %s at most", name, float64(info.Size())/1e6, took[0], took[len(took)/2], took[len(took)-1])
		if info.Size() > maxSize {
			t.Errorf("%s for arm64 has %d bytes, more than %d", name, info.Size(), maxSize)
		}
	}
	t.Logf("%d starts each, in turns; aims: %s for the median, %d bytes", starts, aimTime, maxSize)
}

// emptyTable serves a DynamoDB without items.
func emptyTable(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // if this fails, the function was killed and reads no answer
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	answer := `{}`
	if _, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), "."); action == "BatchGetItem" {
		answer = `{"Responses":{},"UnprocessedKeys":{}}`
	}
	_, _ = io.WriteString(w, answer)
}

// start runs a function until it has answered one event, and returns how long that took.
func start(t *testing.T, program, table string, event []byte) (took time.Duration) {
	t.Helper()
	asked, answered := make(chan struct{}, 1), make(chan time.Time, 1)
	var said bytes.Buffer
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default: // the function asks for a second event, which never comes
			<-r.Context().Done()
			return
		}
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd")
		w.Header().Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10))
		w.Header().Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:cold")
		_, _ = w.Write(event)
	})
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/{what}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(&said, r.Body)
		if r.PathValue("what") != "response" {
			said.WriteString(" is a failure")
		}
		answered <- time.Now()
		w.WriteHeader(http.StatusAccepted)
	})
	var c net.ListenConfig
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	commontest.OK(t, err)
	api := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = api.Serve(l) }()
	defer func() { _ = api.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir = root()
	cmd.Env = coldEnvironment(l.Addr().String(), table)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begun := time.Now()
	commontest.OK(t, cmd.Start())
	defer func() {
		cancel()
		_ = cmd.Wait() // its error is that it was killed
	}()
	select {
	case at := <-answered:
		took = at.Sub(begun)
	case <-ctx.Done():
		t.Fatalf("%s does not answer: %s", program, &stderr)
	}
	if strings.HasSuffix(said.String(), "is a failure") || strings.Contains(said.String(), "the session store did not answer") {
		t.Fatalf("%s: %s\n%s", program, &said, &stderr)
	}
	return took
}

func coldEnvironment(api, table string) []string {
	place, _ := json.Marshal(map[string]any{
		"region": "us-east-1", "cluster": "c", "subnets": []string{"subnet-1"}, "securityGroups": []string{"sg-1"}, "executionRole": "arn:aws:iam::123456789012:role/r",
		"family": "stack-box", "image": "example.com/r", "cpus": 0.25, "memoryMb": 512, "arch": "arm64", "endpoint": table,
	})
	return []string{
		"AWS_LAMBDA_RUNTIME_API=" + api, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=k", "AWS_SECRET_ACCESS_KEY=s", "AWS_LAMBDA_FUNCTION_NAME=cold",
		"DORMOUSE_STORE=dynamodb:cold?endpoint=" + table, "DORMOUSE_SERVERS=servers.json", "DORMOUSE_FLEET=" + string(place),
		"DORMOUSE_SECRET=" + coldSecret, "DORMOUSE_HOSTS=*", "DORMOUSE_IDLE=120",
		"DORMOUSE_RELAY_URL=wss://r.example.com/v1", "DORMOUSE_RELAY_CONNECTIONS=" + table, "DORMOUSE_SOCKET_CONNECTIONS=" + table,
	}
}
