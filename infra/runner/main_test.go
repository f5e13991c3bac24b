package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestExitCodeSaysWhyTheRunnerEnded(t *testing.T) {
	commontest.Equal(t, 3, ExitCode(storage.Errorf(runner.ErrFenced, "somebody newer")))
	commontest.Equal(t, 4, ExitCode(fmt.Errorf("run: %w", storage.Errorf(storage.Unavailable, "no host"))))
	commontest.Equal(t, 1, ExitCode(storage.Errorf(storage.Invalid, "refused")))
	commontest.Equal(t, 1, ExitCode(errors.New("no folder")))
}

func TestAServerStartsAsItsImageSays(t *testing.T) {
	docker := func(args ...string) serversfile.Server {
		return serversfile.Server{Command: "docker", Args: append([]string{"run", "-i"}, args...)}
	}
	both := &frame.Image{Entrypoint: []string{"node", "a.js"}, Cmd: []string{"--stdio"}}
	here, err := os.Getwd()
	commontest.OK(t, err)
	for name, test := range map[string]struct {
		server serversfile.Server
		image  *frame.Image
		want   []string // the folder and the command line
	}{
		"as it is":       {docker("img"), both, []string{here, "node", "a.js", "--stdio"}},
		"arguments":      {docker("img", "x"), both, []string{here, "node", "a.js", "x"}},
		"an entry point": {docker("--entrypoint", "sh", "-w", "/app", "img"), both, []string{"/app", "sh"}},
		"nothing":        {docker("img"), &frame.Image{}, nil},
		"no such option": {docker("--privileged", "img"), both, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := inImage(test.server, test.image)
			if got := append([]string{s.Cwd, s.Command}, s.Args...); (err != nil) != (test.want == nil) || err == nil && !cmp.Equal(test.want, got) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		})
	}
}

func TestOnlyWorkspacesThatAreAskedForAreKept(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	plain := serversfile.Server{Name: "x", Command: "a"}
	asked := plain
	asked.Box.Snapshot = serversfile.SnapshotSession
	for _, c := range []struct {
		store, age string
		ok, kept   bool
	}{
		{"", "", true, false}, {"host", "", true, true}, {"folder:/x", "3h", true, true}, {"folder:/x", "0s", false, false}, {"s3:x", "", false, false},
	} {
		k, err := newKeeping(c.store, c.age)
		commontest.EqualIn(t, c.store+" is taken", c.ok, err == nil)
		if c.ok {
			commontest.EqualIn(t, c.store+" keeps", c.kept, k.keeper(asked, "b", 1, t.TempDir(), log) != nil)
			commontest.EqualIn(t, c.store+" keeps unasked", true, k.keeper(plain, "b", 1, t.TempDir(), log) == nil)
		}
	}
}

func shown(t *testing.T, folder string) []notice {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "task"+statusEnding))
	commontest.OK(t, err)
	var all []notice
	commontest.OK(t, json.Unmarshal(text, &all))
	return all
}

func TestStatusFileShowsHowEachProcessIs(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "x")
	b := newStatusFile(folder, "task", slog.New(slog.DiscardHandler))
	b.show(box.ProcessStatus{Process: "a", State: box.Staging, Detail: "one"})
	since := shown(t, folder)[0].Since
	b.show(box.ProcessStatus{Process: "a", State: box.Staging, Detail: "two"})
	if n := shown(t, folder)[0]; !n.Since.Equal(since) || n.Detail != "two" || time.Since(since) > time.Minute {
		t.Errorf("%+v, it was since %s", n, since)
	}
	for _, s := range []box.ProcessStatus{
		{Process: "a", State: box.Started, PID: 1},
		{Process: "a", State: box.Exited, PID: 1, Phase: box.PhaseMCPInit, Detail: "refused"},
		{Process: "b", State: box.Exited, Phase: box.PhaseDepInstall},
		{Process: "a", State: box.Started, PID: 2},
		{Process: "a", State: box.Started, PID: 2, Detail: "network: a.test was refused"},
		{Process: "a", State: box.Ready, PID: 2, Detail: "network: a.test was refused"},
	} {
		b.show(s)
	}
	want := []notice{{Process: "a", PID: 2, State: "ready", Detail: "network: a.test was refused", Restarts: 1}, {Process: "b", State: "exited", Phase: "dep_install"}}
	commontest.Same(t, want, shown(t, folder), cmpopts.IgnoreFields(notice{}, "Since"))
	for i := range 3 * maxGone {
		b.show(box.ProcessStatus{Process: fmt.Sprint("p", i), State: box.Stopped})
	}
	commontest.EqualIn(t, "processes shown, of which one runs", maxGone+1, len(shown(t, folder)))
	b.remove()
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func kept(t *testing.T, folder string) (names []string, bytes int64) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	commontest.OK(t, err)
	for _, e := range entries {
		info, err := e.Info()
		commontest.OK(t, err)
		commontest.Equal(t, 0o600, info.Mode().Perm())
		names = append(names, e.Name())
		bytes += info.Size()
	}
	return names, bytes
}

func TestLogOfAProcessKeepsTheEndAndStaysSmall(t *testing.T) {
	l, _ := newLogs(t)
	w := l.open("session-1")
	for range 5000 { // about 8 times what is kept
		_, err := w.Write([]byte(strings.Repeat("x", 99) + "\n"))
		commontest.OK(t, err)
	}
	_, err := w.Write([]byte("the end\n"))
	commontest.OK(t, err)
	commontest.OK(t, w.Close())
	names, bytes := kept(t, l.folder)
	if len(names) != 3 || bytes < maxLogHalf || bytes > 2*maxLogHalf || strings.Contains(strings.Join(names, " "), "session-1") {
		t.Errorf("%d bytes are kept in %v, want one to two times %d", bytes, names, maxLogHalf)
	}
	text, err := os.ReadFile(filepath.Join(l.folder, names[0]))
	commontest.OK(t, err)
	commontest.EqualIn(t, "it has the end", true, strings.HasSuffix(string(text), "the end\n"))
}

// newLogs returns the logs of a server, and a function that writes the log of one process.
func newLogs(t *testing.T) (l *logFiles, process func(session string)) {
	t.Helper()
	l = &logFiles{folder: filepath.Join(t.TempDir(), "server"), log: slog.New(slog.DiscardHandler)}
	return l, func(session string) {
		t.Helper()
		w := l.open(session)
		_, err := w.Write([]byte("x\n"))
		commontest.OK(t, err)
		commontest.OK(t, w.Close())
	}
}

func TestLogsOfTheNewestProcessesAreKept(t *testing.T) {
	l, process := newLogs(t)
	process("s")
	process("s")
	names, _ := kept(t, l.folder)
	old := time.Now().Add(-maxLogAge - time.Hour)
	commontest.OK(t, os.Chtimes(filepath.Join(l.folder, names[0]), old, old))
	l.prune()
	if after, _ := kept(t, l.folder); len(after) != len(names)-1 { // whose they are stays with the other
		t.Errorf("%q are kept after one of %q became too old", after, names)
	}
	for n := range 2 * maxLogs {
		process(fmt.Sprintf("s%d", n))
	}
	l.prune() // as a process does that begins
	names, _ = kept(t, l.folder)
	commontest.EqualIn(t, "files are kept, with whose they are", 2*(maxLogs-1), len(names))
}

func TestLogFileLiesInItsFolderWhateverTheSessionIsCalled(t *testing.T) {
	for _, session := range []string{"", "../../etc/passwd", "a/b", strings.Repeat("x", 300)} {
		l, process := newLogs(t)
		process(session)
		if names, _ := kept(t, l.folder); len(names) != 2 || len(names[1]) != 32+len(sharedEnding) || names[0][:33] != names[1][:33] {
			t.Errorf("%q becomes %q", session, names)
		}
		if name := oneLine(session); len(name) != 32 || strings.ContainsAny(name, "./") {
			t.Errorf("%q becomes %q", session, name)
		}
	}
	commontest.EqualIn(t, "a plain name", "Ab-_9", oneLine("Ab-_9"))
}

func TestWhoSharesAProcessIsNotedOnceAndStaysSmall(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "server")
	s := &sharing{folder: folder, log: slog.New(slog.DiscardHandler), known: map[string]bool{}}
	noted := func() []string {
		text, err := os.ReadFile(served(folder, "shared"))
		commontest.OK(t, err)
		return strings.Fields(string(text))
	}
	for range 3 {
		s.note("shared", "s1")
		s.note("shared", "s2")
		s.note("s3", "s3") // has its own
	}
	commontest.EqualIn(t, "noted", "shared s1 s2", strings.Join(noted(), " "))
	for n := range 3000 {
		s.note("shared", fmt.Sprintf("session-%032d", n))
	}
	if all := noted(); all[0] != "shared" || all[len(all)-1] != fmt.Sprintf("session-%032d", 2999) || len(all) < 500 || len(all) > maxShared/40 {
		t.Errorf("%d are noted, the last is %s", len(all), all[len(all)-1])
	}
}

func TestAServerGetsTheValuesOfItsSecrets(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	commontest.OK(t, syscall.Mkfifo(pipe, 0o600))
	s := parsed(t, `{"command": "/bin/sh", "args": ["-c", "printf %s $TOKEN > $0", "`+pipe+`"], "env": {"TOKEN": "ssm:/x/y"}}`)
	log := slog.New(slog.DiscardHandler)
	env := environment{"DORMOUSE_ENV_TOKEN": "t0p"}
	b := newBox(s, setup{work: t.TempDir(), cache: t.TempDir(), env: env, own: ownEnvironment()}, log)
	b.link = runner.New(runner.Config{Box: "t/x", Gen: 1, Executor: b, Log: log, Dial: func(context.Context, string, http.Header) (runner.Conn, error) {
		return nil, errors.New("nobody is there")
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_ = live(ctx, b.link, nil, func() *prepared { return &prepared{box: b, log: log} }) // the relay was never there
		close(ended)
	}()
	b.Deliver(frame.Deliver{
		ID: "d", Session: "s", Principal: "p", Init: json.RawMessage(`{}`),
		Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`),
	})
	got, err := os.ReadFile(pipe) // waits until somebody writes
	commontest.OK(t, err)
	commontest.EqualIn(t, "the server has the token", "t0p", string(got))
	cancel()
	<-ended
}

func parsed(t *testing.T, text string) serversfile.Server {
	t.Helper()
	all, _, err := serversfile.Parse([]byte(`{"mcpServers": {"s": `+text+`}}`), "servers.json", nil)
	commontest.OK(t, err)
	s, ok := all.Server("s")
	if !ok {
		t.Fatal("no server")
	}
	return s
}
