package local

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

func TestTaskMeterBillsAsFargateDoes(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	task := func(server string, ran time.Duration) fleet.Status {
		return fleet.Status{Server: server, State: fleet.Stopped, Started: start, Stopped: start.Add(ran)}
	}
	var m taskMeter
	m.add(task("a", time.Second)) // a minute at least
	m.add(task("a", 90*time.Second))
	m.add(task("b", time.Hour+time.Millisecond)) // whole seconds
	running := []fleet.Status{{Server: "a", State: fleet.Running, Started: start}, task("b", time.Hour)}
	want := map[string]BoxUsage{
		"a": {Tasks: 3, Time: time.Minute + 90*time.Second + 2*time.Minute},
		"b": {Tasks: 1, Time: time.Hour + time.Second},
	}
	if d := cmp.Diff(want, m.usage(running, start.Add(2*time.Minute))); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want["b"], m.usage(nil, start)["b"]); d != "" {
		t.Errorf("a snapshot changed the meter (-want +got):\n%s", d)
	}
}

func TestFunctionUsageIsWhatLambdaBills(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].MemoryMB = 512 })
	r.call("mode", "echo")
	r.call("mode", "echo")
	r.settled(1)
	u := r.pool.Usage()[0]
	s := r.pool.Status()[0]
	if u.Name != "echo" || u.MemoryMB != 512 || u.Requests != 2 || u.Duration != s.Billed+s.Init {
		t.Errorf("usage = %+v, status = %+v", u, s)
	}
	if s.Init < time.Millisecond || s.Init%time.Millisecond != 0 || s.Billed < 2*time.Millisecond {
		t.Errorf("start %v, invocations %v: want whole milliseconds, at least one each", s.Init, s.Billed)
	}
	if got, want := u.GBSeconds(), u.Duration.Seconds()/2; got != want {
		t.Errorf("GB-seconds = %v, want %v", got, want)
	}
}

func TestRESTUsageCountsRequestsByTheirAnswers(t *testing.T) {
	r := newRig(t, nil)
	api, err := NewRESTAPI(RESTConfig{Function: "echo", Invoker: r.pool})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api)
	defer server.Close()
	url := server.URL
	if got := do(t, http.MethodPost, url+"/x?mode=echo", "hello"); got.status != http.StatusOK || got.body != "hello" {
		t.Fatalf("%+v", got)
	}
	do(t, http.MethodGet, url+"/", "") // refused by the gateway
	eventually(t, "the answer is counted", func() bool { return api.Usage().Bytes > 0 })
	if d := cmp.Diff(RESTUsage{Requests: 1, Billed: 1, Bytes: 5}, api.Usage()); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
	api.meter(20 << 20)
	api.meter(20<<20 + 1)
	if got := api.Usage().Billed; got != 1+1+2 {
		t.Errorf("answers of 20 MiB and one byte more cost %d on top, want 3", got-1)
	}
}
