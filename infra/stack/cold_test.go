//go:build cold

package stack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
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

type cold struct {
	next, answer time.Duration // since exec
	cpu          time.Duration // until the answer, about
	peak         int           // KiB of memory, resident
}

// TestColdStarts prints how long each function's program takes for a cold start: from exec
// to the first request for work, and to the answer. Its DynamoDB answers at once. The time is
// that of this machine's processor, and the size that of the processor in the template. CPU
// time says most where other programs keep the machine busy.
func TestColdStarts(t *testing.T) {
	dir, deployed := t.TempDir(), t.TempDir()
	for _, of := range coldEvents() {
		build(t, filepath.Join(dir, of[0]), "../../functions/"+of[0])
		build(t, filepath.Join(deployed, of[0]), "../../functions/"+of[0], "GOOS=linux", "GOARCH=arm64")
	}
	table := httptest.NewServer(http.HandlerFunc(emptyTable))
	defer table.Close()
	measured := map[string][]cold{}
	for range starts {
		for _, of := range coldEvents() {
			event, err := os.ReadFile(root("events", of[1]+".json"))
			commontest.OK(t, err)
			measured[of[0]] = append(measured[of[0]], start(t, filepath.Join(dir, of[0]), table.URL, event))
		}
	}
	rows := []string{"function\tsize on arm64\texec to next, min\tmedian\tmax\tto the answer, min\tmedian\tmax\tCPU, min\tmedian\tmemory\t"}
	for _, of := range coldEvents() {
		name := of[0]
		info, err := os.Stat(filepath.Join(deployed, name))
		commontest.OK(t, err)
		next, answer, cpu, peak := spread(measured[name], func(c cold) time.Duration { return c.next }), spread(measured[name], func(c cold) time.Duration { return c.answer }), spread(measured[name], func(c cold) time.Duration { return c.cpu }), 0
		for _, c := range measured[name] {
			peak = max(peak, c.peak)
		}
		rows = append(rows, fmt.Sprintf("%s\t%.1f MB\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f MB\t", name, float64(info.Size())/1e6, next[0], next[1], next[2],
			answer[0], answer[1], answer[2], cpu[0], cpu[1], float64(peak)*1024/1e6))
		if info.Size() > maxSize {
			t.Errorf("%s for arm64 has %d bytes, more than %d", name, info.Size(), maxSize)
		}
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(w, strings.Join(rows, "\n"))
	if err == nil {
		err = w.Flush()
	}
	commontest.OK(t, err)
	t.Logf("%d starts each, in turns; aims: %s for the median to the answer, %d bytes\n%s", starts, aimTime, maxSize, &out)
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

// start runs a function until it has answered one event.
func start(t *testing.T, program, table string, event []byte) cold {
	t.Helper()
	asked, answered := make(chan time.Time, 1), make(chan time.Time, 1)
	var said bytes.Buffer
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- time.Now():
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
	end := sync.OnceFunc(func() {
		cancel()
		_ = cmd.Wait() // its error is that it was killed
	})
	defer end()
	var result cold
	select {
	case at := <-answered:
		result.answer, result.next = at.Sub(begun), (<-asked).Sub(begun)
	case <-ctx.Done():
		t.Fatalf("%s does not answer: %s", program, &stderr)
	}
	if strings.HasSuffix(said.String(), "is a failure") || strings.Contains(said.String(), "the session store did not answer") {
		t.Fatalf("%s: %s\n%s", program, &said, &stderr)
	}
	result.peak = peak(t, cmd.Process.Pid)
	end()
	result.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return result
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

// peak returns the largest resident memory of a process in KiB, or 0 where the system
// does not tell.
func peak(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(raw)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(string(found[1]))
	commontest.OK(t, err)
	return n
}

// spread returns the minimum, the median and the maximum, as text in milliseconds.
func spread(all []cold, of func(cold) time.Duration) (least [3]string) {
	values := make([]time.Duration, len(all))
	for i, c := range all {
		values[i] = of(c)
	}
	slices.Sort(values)
	for i, v := range []time.Duration{values[0], (values[(len(values)-1)/2] + values[len(values)/2]) / 2, values[len(values)-1]} {
		least[i] = fmt.Sprintf("%.1f ms", float64(v.Microseconds())/1000)
	}
	return least
}
