package emulator

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// started runs a machine whose functions are programs that do nothing. They start, and
// say with that that they have the native server of the file.
func started(t *testing.T, change func(*local.Config)) (*emulated, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"http": "#!/bin/sh\n", "socket": "#!/bin/sh\n", "servers.json": `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}}}}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // two of them are executed
			t.Fatal(err)
		}
	}
	var e *emulated
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, ended := make(chan string, 1), make(chan error, 1)
	cfg := local.Config{
		Listen: "127.0.0.1:0", Servers: filepath.Join(dir, "servers.json"), Data: filepath.Join(dir, "data"), Runner: []string{"/does/not/exist"},
		Idle: time.Minute, Log: io.Discard, Ready: func(url string) { ready <- url },
		Functions: func(ctx context.Context, site *local.Site) (local.Functions, error) {
			f, err := Open(Options{Programs: dir, SleepAfter: time.Second})(ctx, site)
			e, _ = f.(*emulated)
			return f, err
		},
	}
	if change != nil {
		change(&cfg)
	}
	go func() { ended <- local.Run(ctx, cfg) }()
	select {
	case err := <-ended:
		stop()
		return nil, err
	case <-ready:
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e, nil
}

func request(t *testing.T, method, target, authorization, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", authorization)
	r.Header.Set("X-Amz-Invocation-Type", "Event")
	r.Header.Set("X-Amz-Date", "20000101T000000Z")
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

func TestTheStandInsForAWSAreServedBelowTheirSecretPathOnly(t *testing.T) {
	e, err := started(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	base, err := url.Parse(e.local)
	if err != nil {
		t.Fatal(err)
	}
	host := "http://" + base.Host
	const signature = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"
	schedule := `{"GroupName":"dormouse","ScheduleExpression":"at(2999-01-02T03:04:05)","ScheduleExpressionTimezone":"UTC",
		"FlexibleTimeWindow":{"Mode":"OFF"},"ActionAfterCompletion":"DELETE","Target":{"Arn":"` + awsapi.FunctionARN("http") + `","RoleArn":"r","Input":"{}"}}`
	calls := []struct{ method, path, body string }{
		{"POST", "/lambda/2015-03-31/functions/http/invocations", "{}"},
		{"POST", "/scheduler/schedules/x", schedule},
		{"POST", "/fleet/tasks", `{"token":"t"}`},
		{"GET", "/fleet/tasks", ""},
		{"POST", "/connections/local/@connections/AAAAAAAAAAAAAAA=", "x"},
	}
	for _, secret := range []string{"", "/", "/" + uuid.NewString(), strings.ToUpper(base.Path), base.Path[:len(base.Path)-1], "/x" + base.Path} {
		for _, c := range calls {
			if status, text := request(t, c.method, host+secret+c.path, signature, c.body); status != http.StatusNotFound {
				t.Errorf("%s %s below %q: %d %s, want 404", c.method, c.path, secret, status, text)
			}
		}
	}
	tasks, err := e.site.Boxes.Tasks(t.Context())
	if len(e.Processes()) != 0 || e.alarm.Len() != 0 || len(tasks) != 0 || err != nil {
		t.Errorf("there are %+v, %d schedules, %d tasks, %v", e.Processes(), e.alarm.Len(), len(tasks), err)
	}
	// Requests with the secret are all served.
	want := []int{http.StatusAccepted, http.StatusOK, http.StatusBadRequest, http.StatusOK, http.StatusGone}
	for n, c := range calls {
		if status, text := request(t, c.method, e.local+c.path, signature, c.body); status != want[n] {
			t.Errorf("%s %s with the secret: %d %s, want %d", c.method, c.path, status, text, want[n])
		}
	}
}

// A failed start returns the error, and ends the parts that it has already started.
func TestAStartThatFailsEnds(t *testing.T) {
	_, err := started(t, func(c *local.Config) {
		if err := errors.Join(os.Mkdir(c.Data, 0o700), os.WriteFile(filepath.Join(c.Data, "schedules"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "schedules") {
		t.Errorf("it starts: %v", err)
	}
}
