//go:build walk

package stack_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// The http function runs in the emulator, with the rights of its role. For a job it makes a
// schedule. EventBridge Scheduler invokes the function when it is due, and deletes it.
//
// A message for a server that sleeps has the function register a task definition and start a
// task. A new account has ten invocations, and each call that waits for a box holds one.
// Without a bound the calls hold all ten, and none is left to take the frames of the box for
// which they wait.
func TestAFunctionSetsAlarmsStartsABoxAndWaitsForItUnderItsRole(t *testing.T) {
	t.Setenv("LAMBDA_ACCOUNT_CONCURRENCY", "10")
	d := newDrill(t, "Concurrency=10")

	job := d.open("job")
	got := d.request("job", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"work","arguments":{"steps":2,"seconds":1}}}`, job)
	commontest.Contains(t, "the job", `"text":"worked 2 steps"`, got.Body)
	var schedules []string
	if d.do(&schedules, "schedules"); len(schedules) > 0 {
		t.Errorf("schedules are left: %q", schedules)
	}

	const first = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	event, store := d.event("one", first, nil), d.table(d.made.Resources["Table"])
	for waiting := range 3 {
		go func() {
			_, _ = emulated(t.Context(), d.endpoint, "dormouse-http", event) // no runner comes
		}()
		for there := waiting; there == waiting && t.Context().Err() == nil; {
			items, err := store.Items(t.Context(), storage.BoxFor("default", "one"))
			commontest.OK(t, err)
			there = len(items)
		}
	}
	commontest.Contains(t, "a fourth call", "no more may wait", d.request("one", first, nil).Body)
	commontest.Contains(t, "while calls wait the relay answers", `"statusCode": 401`, d.invoke("dormouse-relay", eventFile(t, "relay-connect.json")))

	var tasks []struct{ Family, Image, Execution string }
	for len(tasks) == 0 && t.Context().Err() == nil {
		d.do(&tasks, "tasks")
	}
	// With all defaults nobody has pushed an image.
	const want = "public.ecr.aws/docker/library/node@sha256:"
	if got := tasks[0]; len(tasks) != 1 || !strings.HasPrefix(got.Image, want) || !strings.HasPrefix(got.Family, "dormouse-box-") || !strings.HasSuffix(got.Execution, "/"+d.made.Resources["BoxExecutionRole"]) {
		t.Errorf("the tasks are %+v, want one of %s", tasks, want)
	}
}
