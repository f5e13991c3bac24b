package main

import (
	"context"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestARunningMachineShowsItsServersAndKeepsItsFolder(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}},"old":{"command":"a","disabled":true},"wrong":{"command":1}}}`)
	ready, says := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- local.Run(ctx, local.Config{
			Listen: "127.0.0.1:0", Servers: s.data + "/servers.json", Data: s.data, Runner: []string{"/does/not/exist"},
			Idle: time.Minute, JSON: true, Out: says, Log: io.Discard,
		})
		_ = says.Close()
	}()
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Fatal(err, <-ended)
	}
	go func() { _, _ = io.Copy(io.Discard, ready) }()
	got, code := s.run("ps --data $DATA")
	want := `SERVER   STATE       BOXES  PROCESSES  WHY
counter  asleep      0      0          
old      off         0      0          it is disabled in the servers file
wrong    not served  0      0          command must be a string, not a number (servers.json:1:119)

`
	if !strings.HasPrefix(got, want) || code != exitDone {
		t.Errorf("exit code %d (-want +got):\n%s", code, cmp.Diff(want, got))
	}
	second, code := s.run("run --listen 127.0.0.1:0 --data $DATA --servers $DATA/servers.json")
	if want := "DATA is in use by another dormouse run; stop that one or name another folder with --data"; code != exitFailed || !strings.Contains(second, want) {
		t.Errorf("a second run: exit code %d, %s; want %s", code, second, want)
	}
	stop()
	if err := localtest.Wait(t, ended); err != nil {
		t.Error(err)
	}
}

// A box stays up for a while after its process has failed. Its server must not look like
// one that answers.
func TestPSTellsServersThatFailedFromThoseThatAreAwake(t *testing.T) {
	boxes := []local.BoxStatus{{Box: "default/one", Server: "one"}, {Box: "acme/one", Server: "one"}, {Box: "default/two", Server: "two"}}
	process := func(box, state, detail string, ago time.Duration) processLine {
		return processLine{Box: box, State: state, Detail: detail, Since: noon().Add(-ago)}
	}
	exited := process("default/one", "exited", "exited with code 1: no key\nTraceback", time.Minute)
	for name, test := range map[string]struct {
		all  []processLine
		want serverLine
	}{
		"nothing is known yet": {nil, serverLine{State: starting}},
		"it is installed":      {[]processLine{process("default/one", "staging", "npx", 0)}, serverLine{State: starting}},
		"it is greeted":        {[]processLine{exited, process("acme/one", "started", "", 0)}, serverLine{State: starting, Processes: 1}},
		"it answers":           {[]processLine{exited, process("acme/one", "ready", "", 0)}, serverLine{State: awake, Processes: 1}},
		"it has failed":        {[]processLine{process("acme/one", "exited", "older", time.Hour), exited}, serverLine{State: failed, Why: "exited with code 1: no key"}},
		"it was stopped":       {[]processLine{process("default/one", "stopped", "", 0)}, serverLine{State: awake}},
		"another answers":      {[]processLine{exited, process("default/two", "ready", "", 0)}, serverLine{State: failed, Why: "exited with code 1: no key"}},
	} {
		test.want.Name, test.want.Boxes = "one", 2
		got := summary(local.MachineStatus{Servers: []local.ServerStatus{{Name: "one"}}, Boxes: boxes}, test.all)
		if d := cmp.Diff([]serverLine{test.want}, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestPSPrintsAReport(t *testing.T) {
	at := func(ago time.Duration) time.Time { return noon().Add(-ago) }
	r := report{
		Running: true,
		MachineStatus: local.MachineStatus{
			Functions: []local.ProcessStatus{{Name: "http", PID: 7, State: "busy", Since: at(time.Second), Invocations: 3}},
			Boxes: []local.BoxStatus{{Box: "default/one", Server: "one", PID: 8, Started: at(time.Minute), Processes: []local.BoxMember{
				{PID: 9, Command: "node cli.js", Started: at(time.Second)},
			}}},
		},
		Servers: []serverLine{{Name: "one", State: awake, Boxes: 1, Processes: 1}},
		Processes: []processLine{
			{Process: "principal-0123456789abcdef", Box: "default/one", PID: 9, State: "ready", Since: at(time.Second), Restarts: 1},
			{Process: "c3bjph2vld4rqqqqqqqq", Box: "default/one", State: "exited", Phase: "runtime", Detail: strings.Repeat("x", 200) + "\ny", Since: at(0)},
		},
		Sessions: []sessionLine{{
			ID: "c3bjph2vld4rqqqqqqqq", Server: "one", State: "ended", Quit: "client", Client: "cursor",
			Created: at(time.Hour), LastMessage: at(time.Minute), Expires: at(-time.Hour),
		}},
	}
	var out strings.Builder
	if err := r.print(&out, noon()); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/ps.txt")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		want = []byte(out.String())
		if err := os.WriteFile("testdata/ps.txt", want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestVersionIsThatOfTheBuild(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}, {Key: "vcs.time", Value: "2026-11-22T12:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	b := buildOf(info)
	if want := "dormouse v1.2.3 (0123456789ab, modified) "; !strings.HasPrefix(b.line(), want) || b.Time != "2026-11-22T12:00:00Z" || !b.Modified {
		t.Errorf("%s, %+v; want %s", b.line(), b, want)
	}
	info.Settings, info.Main.Version = nil, "(devel)"
	if b := buildOf(info); !strings.HasPrefix(b.line(), "dormouse devel go") || b.Commit != "" {
		t.Errorf("%s, %+v", b.line(), b)
	}
}
