package ecs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/fleettest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

func TestFleetKeepsTheContract(t *testing.T) {
	fleettest.Run(t, func(t *testing.T) fleettest.Harness {
		f := newFake()
		f.room = fleettest.Room
		return fleettest.Harness{
			Fleet: open(t, f, nil), Waits: map[string]string{"PLAY": "0"}, Exits3: map[string]string{"PLAY": "3"},
			Ready: func(t *testing.T, id string) { f.move(t, id, running) },
			Kill:  func(t *testing.T, id string) { f.move(t, id, ends(128+9)) },
			Ended: func(t *testing.T, id string) {
				f.move(t, id, func(task *fakeTask) {
					if task.status == "STOPPED" {
						return // killed
					}
					if task.started.IsZero() {
						running(task)
					}
					var code int
					_, _ = fmt.Sscan(task.env["PLAY"], &code)
					ends(code)(task)
				})
			},
		}
	})
}

// A box gets no role: neither request has a taskRoleArn.
func TestWhatECSIsAskedFor(t *testing.T) {
	f := newFake()
	runs(t, open(t, f, nil), "token-1")
	definition, run := f.last(t, "RegisterTaskDefinition"), f.last(t, "RunTask")
	family, _ := definition["family"].(string)
	delete(definition, "family")
	if !strings.HasPrefix(family, "dormouse-box-") || run["taskDefinition"] != family {
		t.Errorf("family %q, run %q", family, run["taskDefinition"])
	}
	list := func(v ...any) []any { return v }
	type object = map[string]any
	variable := func(name, value string) object { return object{"name": name, "value": value} }
	volume := list(object{"sourceVolume": "dormouse", "containerPath": "/dormouse"})
	logs := object{"logDriver": "awslogs", "options": object{
		"awslogs-group": "/dormouse/box", "awslogs-region": "us-east-1", "awslogs-stream-prefix": "box",
		"mode": "non-blocking", "max-buffer-size": "4m",
	}}
	commontest.SameIn(t, "definition", object{
		"cpu": "256", "memory": "512", "networkMode": "awsvpc", "requiresCompatibilities": list("FARGATE"),
		"executionRoleArn": "arn:aws:iam::123456789012:role/execution",
		"runtimePlatform":  object{"cpuArchitecture": "ARM64", "operatingSystemFamily": "LINUX"},
		"containerDefinitions": list(object{
			"name": "runner", "image": "example.com/runner@sha256:00", "essential": true, "cpu": 256.0, "memory": 512.0, "memoryReservation": 448.0, "stopTimeout": 30.0,
			"entryPoint": list("/dormouse/runner"), "mountPoints": volume, "dependsOn": list(object{"containerName": "fetch", "condition": "SUCCESS"}),
			"environment": list(
				variable("DORMOUSE_CACHE", "/dormouse/cache"), variable("DORMOUSE_ROOTS", "/dormouse/roots.pem"),
				variable("LANG", "C.UTF-8"), variable("UV_PYTHON_DOWNLOADS", "never"),
			),
			"linuxParameters": object{"capabilities": object{
				"drop": list("AUDIT_WRITE", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SYS_CHROOT"),
			}},
			"logConfiguration": logs,
		}, object{
			"name": "fetch", "image": fetcherImage, "essential": false, "memoryReservation": 64.0, "startTimeout": 60.0, "readonlyRootFilesystem": true,
			"entryPoint": list("/bin/sh", "-ec"), "command": list(fetch), "workingDirectory": "/dormouse", "mountPoints": volume,
			"linuxParameters": object{"capabilities": object{"drop": list("ALL")}}, "logConfiguration": logs,
		}),
		"volumes": list(object{"name": "dormouse"}),
	}, definition)
	commontest.SameIn(t, "run", object{
		"cluster": "dormouse", "taskDefinition": family, "clientToken": "token-1", "startedBy": "token-1", "count": 1.0, "enableECSManagedTags": true,
		"tags":  list(object{"key": "dormouse:server", "value": "echo"}),
		"group": "dormouse:YWNtZS9lY2hv:ZWNobw", "launchType": "FARGATE",
		"networkConfiguration": object{"awsvpcConfiguration": object{
			"subnets": list("subnet-1", "subnet-2"), "securityGroups": list("sg-1"), "assignPublicIp": "ENABLED",
		}},
		"overrides": object{"containerOverrides": list(object{"name": "runner", "environment": list(
			variable("A", "1"), variable("B", "2"), variable("DORMOUSE_BOX_TASK", "ecs/token-1"),
		)}, object{"name": "fetch", "environment": list(variable("RUNNER_URL", signedURL), variable("RUNNER_SHA256", runnerSum))})},
	}, run)
}

// ECS starts neither the entry point nor the command of an image, but leaves its user and its
// environment as they are.
func TestAServersOwnImageIsPinnedOnceAndStartedAsItSays(t *testing.T) {
	f := newFake()
	asked := 0
	shape := Shape{Image: "example.com/server:1"}
	x := open(t, f, func(c *Config) {
		inspect := c.Inspect
		c.Inspect = func(ctx context.Context, image string) (string, frame.Image, error) {
			asked++
			return inspect(ctx, image)
		}
		c.Shape = func(fleet.Task) (Shape, error) { return shape, nil }
	})
	for _, token := range []string{"a", "b"} {
		runs(t, x, token)
	}
	runner := func() map[string]any {
		return f.last(t, "RegisterTaskDefinition")["containerDefinitions"].([]any)[0].(map[string]any)
	}
	got := runner()
	want := []any{
		map[string]any{"name": "DORMOUSE_CACHE", "value": "/dormouse/cache"},
		map[string]any{"name": "DORMOUSE_ROOTS", "value": "/dormouse/roots.pem"},
		map[string]any{"name": "DORMOUSE_IMAGE", "value": `{"entrypoint":["/server"],"cmd":["stdio"]}`},
	}
	if d := cmp.Diff(want, got["environment"]); d != "" || got["image"] != "example.com/server:1@sha256:11" || got["user"] != nil || asked != 1 {
		t.Errorf("asked %d times, image %v, user %v, environment %s", asked, got["image"], got["user"], d)
	}
	if d := cmp.Diff([]any{"/dormouse/runner"}, got["entryPoint"]); d != "" || got["command"] != nil {
		t.Error(got["command"], d)
	}
	shape.User = "65532"
	if _, err := x.Run(t.Context(), taskFor("c")); err != nil || runner()["user"] != "65532" {
		t.Error(runner()["user"], err)
	}
}

// The script of the first container, with the programs of this machine.
func TestTheRunnerComesIntoTheVolumeOnlyAsItWasPutIntoTheBucket(t *testing.T) {
	const program = "#!/bin/sh\necho ran\n"
	sum := sha256.Sum256([]byte(program))
	var tries atomic.Int32
	bucket := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, program)
	}))
	defer bucket.Close()
	for name, test := range map[string]struct {
		sum  string
		good bool
	}{"right": {hex.EncodeToString(sum[:]), true}, "other bytes": {runnerSum, false}} {
		t.Run(name, func(t *testing.T) {
			tries.Store(0)
			folder := t.TempDir()
			script := strings.Replace(fetch, "/etc/ssl/certs/ca-certificates.crt", "/etc/hostname", 1)
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-ec", script)
			cmd.Dir, cmd.Env = folder, append(os.Environ(), urlEnv+"="+bucket.URL+"/?a=b&c=d", sumEnv+"="+test.sum)
			said, err := cmd.CombinedOutput()
			commontest.EqualIn(t, fmt.Sprintf("%s: %v\n%s", name, err, said), test.good, err == nil)
			out, ran := exec.CommandContext(t.Context(), filepath.Join(folder, "runner")).Output()
			info, there := os.Stat(filepath.Join(folder, "cache"))
			if test.good && (ran != nil || string(out) != "ran\n" || there != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0) || !test.good && ran == nil {
				t.Errorf("%s: %q, %v, %v", name, out, ran, info)
			}
		})
	}
}

func TestSpotAsksForSpareCapacityOnly(t *testing.T) {
	f := newFake()
	x := open(t, f, func(c *Config) { c.Spot, c.PublicIP = true, false })
	runs(t, x, "a")
	run := f.last(t, "RunTask")
	want := []any{map[string]any{"capacityProvider": "FARGATE_SPOT", "weight": 1.0}}
	if d := cmp.Diff(want, run["capacityProviderStrategy"]); d != "" || run["launchType"] != nil {
		t.Errorf("launch type %v, strategy %s", run["launchType"], d)
	}
}

// A run of a known definition is one request.
func TestEqualShapesShareADefinitionAndOthersDoNot(t *testing.T) {
	f := newFake()
	shape := Shape{}
	x := open(t, f, func(c *Config) { c.Shape = func(fleet.Task) (Shape, error) { return shape, nil } })
	families := map[string]bool{}
	for n, s := range []Shape{{}, {Size: Size{MemoryMB: 500}}, {Image: "example.com/other:1"}, {Size: Size{CPUs: 1}}, {}} {
		shape = s
		runs(t, x, fmt.Sprint("t", n))
		families[f.last(t, "RunTask")["taskDefinition"].(string)] = true
	}
	commontest.EqualIn(t, "families", 3, len(families)) // as usual, image, size
	commontest.Same(t, map[string]int{"RunTask": 5 + 3, "RegisterTaskDefinition": 3}, f.actions())
}

func TestSecretsAreNamedInTheDefinitionAndNowhereElse(t *testing.T) {
	f := newFake()
	named := map[string]string{
		"D_B": "secretsmanager:dormouse/openai:key::", "D_A": "ssm:/dormouse/github", "D_C": "ssm:arn:aws:ssm:eu-north-1:123456789012:parameter/x",
	}
	x := open(t, f, func(c *Config) { c.Shape = func(fleet.Task) (Shape, error) { return Shape{Secrets: named}, nil } })
	runs(t, x, "t")
	want := []any{
		map[string]any{"name": "D_A", "valueFrom": "arn:aws:ssm:" + x.cfg.Region + ":123456789012:parameter/dormouse/github"},
		map[string]any{"name": "D_B", "valueFrom": "arn:aws:secretsmanager:" + x.cfg.Region + ":123456789012:secret:dormouse/openai:key::"},
		map[string]any{"name": "D_C", "valueFrom": "arn:aws:ssm:eu-north-1:123456789012:parameter/x"},
	}
	containers, _ := f.last(t, "RegisterTaskDefinition")["containerDefinitions"].([]any)
	commontest.Same(t, want, containers[0].(map[string]any)["secrets"])
	if run := fmt.Sprint(f.last(t, "RunTask")); strings.Contains(run, "openai") || strings.Contains(run, "github") {
		t.Errorf("what a task is started with: %s", run)
	}
	named = map[string]string{"D_A": "vault:x"}
	if _, err := x.Run(t.Context(), taskFor("t2")); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a secret of nowhere: %v", err)
	}
}

func TestAnEnvironmentThatECSDoesNotTakeIsRefusedBeforeACall(t *testing.T) {
	f := newFake()
	x := open(t, f, nil)
	for name, change := range map[string]func(*fleet.Task){
		"too long":          func(t *fleet.Task) { t.Env["LONG"] = strings.Repeat(`"`, maxOverrides/2) },
		"long names":        func(t *fleet.Task) { t.Box = strings.Repeat("b", 200) },
		"a token with dots": func(t *fleet.Task) { t.ClientToken = "a.b" },
	} {
		bad := taskFor("a")
		change(&bad)
		if _, err := x.Run(t.Context(), bad); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	commontest.EqualIn(t, "calls of ECS", 0, len(f.actions()))
}

func TestRefusalsAreToldApart(t *testing.T) {
	for name, tt := range map[string]struct {
		action string
		answer *answer
		want   error
	}{
		"no capacity":   {"RunTask", ok(map[string]any{"failures": []any{map[string]any{"reason": "Capacity is unavailable at this time"}}}), fleet.ErrCapacity},
		"throttled":     {"RunTask", refusal(400, "ThrottlingException", nil), fleet.ErrCapacity},
		"parameter":     {"RunTask", refusal(400, "InvalidParameterException", nil), fleet.ErrInvalid},
		"access":        {"RunTask", refusal(400, "AccessDeniedException", nil), fleet.ErrUnavailable},
		"no connection": {"RunTask", &answer{err: errors.New("connection reset")}, fleet.ErrUnavailable},
		"definition":    {"RegisterTaskDefinition", refusal(400, "ClientException", nil), fleet.ErrInvalid},
		"list":          {"ListTasks", refusal(500, "ServerException", nil), fleet.ErrUnavailable},
		"descriptions":  {"DescribeTasks", refusal(500, "ServerException", nil), fleet.ErrUnavailable},
		// ECS names the task that has a token. Any other conflict is no sign that a task was started.
		"a conflict that names no task": {"RunTask", refusal(400, "ConflictException", nil), fleet.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				x := open(t, f, nil)
				if tt.action != "RegisterTaskDefinition" {
					runs(t, x, "a")
				}
				f.before = func(called string, _ map[string]any) *answer {
					if called == tt.action {
						return tt.answer
					}
					return nil
				}
				var err error
				switch tt.action {
				case "ListTasks", "DescribeTasks":
					_, err = x.Tasks(t.Context())
				default:
					_, err = x.Run(t.Context(), taskFor("b"))
				}
				if !errors.Is(err, tt.want) {
					t.Errorf("got %v, want %v", err, tt.want)
				}
			})
		})
	}
}

func TestAThrottledCallIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		n := 0
		f.before = func(action string, _ map[string]any) *answer {
			if action != "RegisterTaskDefinition" {
				return nil
			}
			if n++; n < attempts {
				return refusal(400, "ThrottlingException", nil)
			}
			return nil
		}
		runs(t, open(t, f, nil), "a")
		commontest.EqualIn(t, "tasks", 1, len(f.tasks))
	})
}

func TestAPlaceIsReadAsTheTemplateWritesIt(t *testing.T) {
	got, err := ParsePlace(`{"region":"r","cluster":"c","subnets":["a","b"],"securityGroups":["s"],"publicIp":true,"spot":true,` +
		`"executionRole":"e","family":"f","logGroup":"l","image":"i","runner":"b/runner/s","cpus":0.25,"memoryMb":512,"arch":"arm64"}`)
	commontest.OK(t, err)
	want := Config{
		Region: "r", Cluster: "c", Subnets: []string{"a", "b"}, SecurityGroups: []string{"s"}, PublicIP: true, Spot: true,
		ExecutionRole: "e", Family: "f", LogGroup: "l", Image: "i", Runner: "b/runner/s", Size: Size{CPUs: 0.25, MemoryMB: 512}, Arch: "arm64",
	}
	commontest.Same(t, want, got)
}

func TestAServersNameIsATagThatAWSTakes(t *testing.T) {
	for name, want := range map[string]string{"echo": "echo", "a*b,c": "a_b_c", "größe 1": "größe 1", "": "", strings.Repeat("é*", 200): strings.Repeat("é_", 128)} {
		commontest.EqualIn(t, fmt.Sprintf("%q is the tag", name), want, tagValue(name))
	}
}
