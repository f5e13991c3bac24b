package ecs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

// cloud is a sweep over a store and an ECS, with one request that waits for a box.
type cloud struct {
	*fake
	t       *testing.T
	store   session.Store
	sweeper *relayhost.Sweeper
	box     session.BoxID
	session session.ID
	stream  session.StreamID
}

type nobody struct{}

func (nobody) Post(context.Context, string, []byte) error {
	return session.Errorf(session.Closed, "nobody is connected")
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	store := sessiontest.NewMemory()
	sealer, err := relayhost.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{fake: newFake(), t: t, store: store, box: session.BoxFor("acme", "echo"), session: "s1", stream: "d1"}
	c.sweeper = relayhost.NewSweeper(relayhost.Config{
		Store: store, Poster: nobody{}, Fleet: open(t, c.fake, nil), Sealer: sealer,
		Launch: func(session.Box) (map[string]string, error) { return map[string]string{}, nil },
	})
	now := time.Now()
	err = store.Create(t.Context(), session.Session{
		ID: c.session, Server: "echo", Tenant: "acme", Principal: "ada", Transport: session.HTTP, State: session.Ready,
		Created: now, Used: now, Expires: now.Add(time.Hour),
	})
	if err == nil {
		err = store.SaveBox(t.Context(), session.Box{ID: c.box, Tenant: "acme", Server: "echo", Changed: now})
	}
	if err == nil {
		_, err = store.PutItem(t.Context(), session.Item{
			Box: c.box, ID: c.stream, State: session.Waiting, Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`),
			NotAfter: now.Add(time.Minute), Created: now,
			Address: session.Address{Session: c.session, Stream: c.stream, Requests: []json.RawMessage{[]byte("1")}, Box: c.box},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cloud) sweep() {
	c.t.Helper()
	if err := c.sweeper.Sweep(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// tell invokes the sweep with EventBridge's event about the task that stopped last.
func (c *cloud) tell() {
	c.t.Helper()
	c.mu.Lock()
	var d map[string]any
	for _, task := range c.tasks {
		if task.status == "STOPPED" {
			d = task.describe()
		}
	}
	c.mu.Unlock()
	for name, v := range d {
		if at, ok := v.(float64); ok {
			d[name] = time.UnixMilli(int64(at * 1000)).UTC().Format(time.RFC3339Nano)
		}
	}
	detail, err := json.Marshal(d)
	if err != nil {
		c.t.Fatal(err)
	}
	status, ours, err := TaskEvent(detail)
	if err != nil || !ours {
		c.t.Fatalf("ours %t, %v: %s", ours, err, detail)
	}
	if err := c.sweeper.Stopped(c.t.Context(), status); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cloud) newest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tasks[len(c.tasks)-1].token
}

// wakes makes the runner of the newest task send hello and take the request.
func (c *cloud) wakes() {
	c.t.Helper()
	c.move(c.t, c.newest(), running)
	b, err := c.store.Box(c.t.Context(), c.box)
	if err != nil {
		c.t.Fatal(err)
	}
	b.State, b.Runner, b.Conn = session.Awake, "r1", "conn"
	c.move(c.t, c.newest(), func(task *fakeTask) { b.Task = task.env[TaskEnv] }) // as the runner learns it
	if err := c.store.SaveBox(c.t.Context(), b); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.store.Claim(c.t.Context(), c.box, c.stream, b.Gen); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cloud) ended(want string) {
	c.t.Helper()
	page, err := c.store.Read(c.t.Context(), c.session, c.stream, 0, 10)
	if err != nil {
		c.t.Fatal(err)
	}
	if !page.Final() || !strings.Contains(string(page.Events[0].Raw), want) {
		c.t.Errorf("the request has %+v, want an end with %q", page.Events, want)
	}
	if items, err := c.store.Items(c.t.Context(), c.box); err != nil || len(items) != 0 {
		c.t.Errorf("items are left: %+v, %v", items, err)
	}
}

func (c *cloud) open() {
	c.t.Helper()
	if page, err := c.store.Read(c.t.Context(), c.session, c.stream, 0, 10); err != nil || len(page.Events) != 0 {
		c.t.Errorf("the request has %+v, %v; want nothing yet", page.Events, err)
	}
}

// If a task dies at its start, the sweep starts one more, under another token. If that one
// dies too, the request ends with an error.
func TestATaskThatDiesBeforeItsHelloIsStartedOnceMore(t *testing.T) {
	for _, phase := range []string{"PROVISIONING", "PENDING", "ACTIVATING", "RUNNING"} {
		t.Run(phase, func(t *testing.T) {
			c := newCloud(t)
			c.sweep()
			for n := range 2 {
				if len(c.tasks) != n+1 {
					t.Fatalf("%d tasks after %d ends", len(c.tasks), n)
				}
				c.open()
				c.move(t, c.newest(), func(task *fakeTask) {
					task.status, task.desired, task.stopped = "STOPPED", "STOPPED", time.Now()
					task.stopCode, task.reason = "TaskFailedToStart", "died in "+phase
					if phase == "RUNNING" {
						running(task)
						ends(1)(task)
					}
				})
				c.tell()
				c.tell() // events come twice at times
			}
			if len(c.tasks) != 2 || c.tasks[0].token == c.tasks[1].token {
				t.Errorf("%d tasks", len(c.tasks))
			}
			c.ended("box_unavailable: the box could not start")
		})
	}
}

func TestATaskThatIsKilledInACallEndsTheCall(t *testing.T) {
	for name, notice := range map[string]func(*cloud){"by its event": (*cloud).tell, "by the schedule": (*cloud).sweep} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			c.sweep()
			c.wakes()
			c.sweep()
			c.open()
			c.move(t, c.newest(), ends(128+9))
			notice(c)
			c.ended("killed by SIGKILL")
			if len(c.tasks) != 1 {
				t.Errorf("%d tasks: the call was made again", len(c.tasks))
			}
		})
	}
}

func TestAStartThatIsRefusedEndsTheCallWithWhatToDo(t *testing.T) {
	for code, want := range map[string]string{
		"ThrottlingException":   "no room for another box now",
		"AccessDeniedException": "the operator's log has the cause",
	} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCloud(t)
				c.before = func(action string, _ map[string]any) *answer {
					if action == "RunTask" {
						return refusal(400, code, nil)
					}
					return nil
				}
				c.sweep()
				c.ended(want)
			})
		})
	}
}

// The sweep must not give up a box only because ECS does not answer.
func TestAListThatFailsLosesNoBox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.sweep()
		c.wakes()
		c.before = func(action string, _ map[string]any) *answer {
			if action == "ListTasks" {
				return &answer{err: fmt.Errorf("connection reset")}
			}
			return nil
		}
		if err := c.sweeper.Sweep(t.Context()); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		c.open()
	})
}
