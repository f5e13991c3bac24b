package ecs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// fake is the part of ECS that a Fleet uses. It stands behind the HTTP client of the fleet,
// and requests and answers have the same bytes as those of the service (awsjson 1.1).
// Tasks change their state when a test says so.
type fake struct {
	mu          sync.Mutex
	room        int // for tasks at a time
	pageSize    int
	definitions map[string]map[string]any // by family
	tasks       []*fakeTask
	calls       []call
	// before is called ahead of each action; its answer, if not nil, replaces that of the
	// action. after is called when an action has taken effect, and may replace its answer
	// too.
	before, after func(action string, in map[string]any) *answer
}

type call struct {
	action string
	in     map[string]any
}

type answer struct {
	status int
	body   any
	err    error // of the connection
}

type fakeTask struct {
	arn, token, group, family string
	hidden                    bool // not on the lists yet
	request                   string
	env                       map[string]string
	status, desired           string
	created, started          time.Time
	executionStopped, stopped time.Time
	code                      *int
	stopCode, reason          string
	firstCode                 *int
}

func newFake() *fake {
	return &fake{room: 100, pageSize: 100, definitions: map[string]map[string]any{}}
}

// refusal returns an error in the form in which ECS writes it.
func refusal(status int, code string, more map[string]any) *answer {
	body := map[string]any{"__type": code, "message": "said by the test"}
	for k, v := range more {
		body[k] = v
	}
	return &answer{status: status, body: body}
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var in map[string]any
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, err
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	a := f.handle(action, in)
	if a.err != nil {
		return nil, a.err
	}
	body, err := json.Marshal(a.body)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: a.status, Header: http.Header{"Content-Type": {"application/x-amz-json-1.1"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

func (f *fake) handle(action string, in map[string]any) *answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{action, in})
	if f.before != nil {
		if a := f.before(action, in); a != nil {
			return a
		}
	}
	a := f.act(action, in)
	if f.after != nil {
		if instead := f.after(action, in); instead != nil {
			return instead
		}
	}
	return a
}

func (f *fake) act(action string, in map[string]any) *answer {
	switch action {
	case "RegisterTaskDefinition":
		f.definitions[in["family"].(string)] = in
		return ok(map[string]any{"taskDefinition": map[string]any{"family": in["family"]}})
	case "RunTask":
		return f.runTask(in)
	case "ListTasks":
		return f.listTasks(in)
	case "DescribeTasks":
		found, missing := []any{}, []any{}
		for _, arn := range in["tasks"].([]any) {
			if t := f.find(arn.(string)); t != nil {
				found = append(found, t.describe())
			} else {
				missing = append(missing, map[string]any{"arn": arn, "reason": "MISSING"})
			}
		}
		return ok(map[string]any{"tasks": found, "failures": missing})
	case "StopTask":
		t := f.find(in["task"].(string))
		if t == nil {
			return refusal(400, "InvalidParameterException", nil)
		}
		if t.desired != "STOPPED" {
			t.desired, t.reason, t.stopCode = "STOPPED", in["reason"].(string), "UserInitiated"
		}
		return ok(map[string]any{"task": t.describe()})
	}
	return refusal(400, "UnknownOperationException", nil)
}

func ok(body map[string]any) *answer { return &answer{status: 200, body: body} }

func (f *fake) runTask(in map[string]any) *answer {
	family, token := in["taskDefinition"].(string), in["clientToken"].(string)
	request, _ := json.Marshal(in)
	for _, t := range f.tasks {
		if t.token == token && t.request == string(request) {
			return ok(map[string]any{"tasks": []any{t.describe()}, "failures": []any{}})
		}
		if t.token == token {
			return refusal(400, "ConflictException", map[string]any{"resourceIds": []string{t.arn}})
		}
	}
	if _, known := f.definitions[family]; !known {
		return refusal(400, "ClientException", nil)
	}
	running := 0
	for _, t := range f.tasks {
		if t.status != "STOPPED" {
			running++
		}
	}
	if running >= f.room {
		return ok(map[string]any{"tasks": []any{}, "failures": []any{map[string]any{"reason": "RESOURCE:FARGATE"}}})
	}
	env := map[string]string{}
	override := in["overrides"].(map[string]any)["containerOverrides"].([]any)[0].(map[string]any)
	for _, e := range override["environment"].([]any) {
		env[e.(map[string]any)["name"].(string)] = e.(map[string]any)["value"].(string)
	}
	t := &fakeTask{
		arn:   fmt.Sprintf("arn:aws:ecs:us-east-1:123456789012:task/dormouse/%032d", len(f.tasks)+1),
		token: token, group: in["group"].(string), family: family, request: string(request), env: env,
		status: "PROVISIONING", desired: "RUNNING", created: time.Now().Add(time.Duration(len(f.tasks)) * time.Millisecond),
	}
	f.tasks = append(f.tasks, t)
	return ok(map[string]any{"tasks": []any{t.describe()}, "failures": []any{}})
}

func (f *fake) listTasks(in map[string]any) *answer {
	desired, _ := in["desiredStatus"].(string)
	by, _ := in["startedBy"].(string)
	var arns []string
	for _, t := range f.tasks {
		if t.desired == cmp.Or(desired, "RUNNING") && (by == "" || t.token == by) && !t.hidden {
			arns = append(arns, t.arn)
		}
	}
	slices.Reverse(arns) // in no order that means anything
	start := 0
	if next, _ := in["nextToken"].(string); next != "" {
		_, _ = fmt.Sscan(next, &start)
	}
	end := min(start+f.pageSize, len(arns))
	out := map[string]any{"taskArns": arns[start:end]}
	if end < len(arns) {
		out["nextToken"] = fmt.Sprint(end)
	}
	return ok(out)
}

func (f *fake) find(arn string) *fakeTask {
	for _, t := range f.tasks {
		if t.arn == arn {
			return t
		}
	}
	return nil
}

// describe returns a task as ECS describes it. An event has the same fields, except for
// some times.
func (t *fakeTask) describe() map[string]any {
	c := map[string]any{"name": "runner", "lastStatus": containerStatus(t.status)}
	d := map[string]any{
		"taskArn": t.arn, "group": t.group, "startedBy": t.token, "lastStatus": t.status, "desiredStatus": t.desired,
		"launchType": "FARGATE", "createdAt": seconds(t.created), "containers": []any{map[string]any{"name": "fetch", "lastStatus": "STOPPED", "exitCode": cmp.Or(t.firstCode, new(int))}, c},
	}
	for name, at := range map[string]time.Time{"startedAt": t.started, "executionStoppedAt": t.executionStopped, "stoppedAt": t.stopped} {
		if !at.IsZero() {
			d[name] = seconds(at)
		}
	}
	if t.code != nil {
		c["exitCode"] = *t.code
	}
	for into, v := range map[string]string{"stopCode": t.stopCode, "stoppedReason": t.reason} {
		if v != "" {
			d[into] = v
		}
	}
	return d
}

func containerStatus(task string) string {
	switch task {
	case "RUNNING", "DEACTIVATING", "STOPPING":
		return "RUNNING"
	case "DEPROVISIONING", "STOPPED":
		return "STOPPED"
	}
	return "PENDING"
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// move changes a task, which its token or its id names.
func (f *fake) move(t *testing.T, token string, change func(*fakeTask)) {
	t.Helper()
	token = strings.TrimPrefix(token, Place+"/")
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, task := range f.tasks {
		if task.token == token {
			change(task)
			return
		}
	}
	t.Fatalf("no task %s", token)
}

func running(t *fakeTask) { t.status, t.started = "RUNNING", time.Now() }

// ends returns a change that ends a task's container with a code.
func ends(code int) func(*fakeTask) {
	return func(t *fakeTask) {
		t.status, t.desired, t.code = "STOPPED", "STOPPED", &code
		t.executionStopped, t.stopped = time.Now(), time.Now().Add(time.Second)
		if t.stopCode == "" {
			t.stopCode, t.reason = "EssentialContainerExited", "Essential container in task exited"
		}
	}
}

func (f *fake) actions() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[string]int{}
	for _, c := range f.calls {
		n[c.action]++
	}
	return n
}

func (f *fake) last(t *testing.T, action string) map[string]any {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range slices.Backward(f.calls) {
		if c.action == action {
			return c.in
		}
	}
	t.Fatalf("%s was not called", action)
	return nil
}

const signedURL = "https://stack-bucket.s3.us-east-1.amazonaws.com/runner/x?X-Amz-Signature=00"

var runnerSum = strings.Repeat("ab", 32)

func config(f *fake) Config {
	return Config{
		Region: "us-east-1", Endpoint: "http://ecs.test", HTTPClient: &http.Client{Transport: f},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
		Cluster: "dormouse", Subnets: []string{"subnet-1", "subnet-2"}, SecurityGroups: []string{"sg-1"}, PublicIP: true,
		ExecutionRole: "arn:aws:iam::123456789012:role/execution", Family: "dormouse-box", LogGroup: "/dormouse/box",
		Image: "example.com/runner@sha256:00", Size: Size{CPUs: 0.25, MemoryMB: 512}, Arch: "arm64",
		Runner: "stack-bucket/runner/" + runnerSum, RunnerURL: func(context.Context) (string, error) { return signedURL, nil },
		Inspect: func(_ context.Context, image string) (string, frame.Image, error) {
			return image + "@sha256:11", frame.Image{Entrypoint: []string{"/server"}, Cmd: []string{"stdio"}}, nil
		},
	}
}

// open makes a Fleet on a fake; change may be nil.
func open(t *testing.T, f *fake, change func(*Config)) *Fleet {
	t.Helper()
	c := config(f)
	if change != nil {
		change(&c)
	}
	x, err := New(c)
	commontest.OK(t, err)
	return x
}

func taskFor(token string) fleet.Task {
	return fleet.Task{ClientToken: token, Box: "acme/echo", Server: "echo", Env: map[string]string{"B": "2", "A": "1"}}
}

func runs(t *testing.T, x *Fleet, token string) {
	t.Helper()
	_, err := x.Run(t.Context(), taskFor(token))
	commontest.OK(t, err)
}
