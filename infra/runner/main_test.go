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
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{
		{storage.Errorf(runner.ErrFenced, "somebody newer"), 3},
		{fmt.Errorf("run: %w", storage.Errorf(storage.Unavailable, "no host")), 4},
		{storage.Errorf(storage.Invalid, "refused"), 1},
		{errors.New("no folder"), 1},
	} {
		commontest.Equal(t, c.want, ExitCode(c.err))
	}
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
		"on one machine": {docker("img"), nil, []string{"", "docker", "run", "-i", "img"}},
		"as it is":       {docker("img"), both, []string{here, "node", "a.js", "--stdio"}},
		"arguments":      {docker("img", "x"), both, []string{here, "node", "a.js", "x"}},
		"an entry point": {docker("--entrypoint", "sh", "-w", "/app", "img"), both, []string{"/app", "sh"}},
		"a command only": {docker("img"), &frame.Image{Cmd: []string{"server"}}, []string{here, "server"}},
		"no docker":      {serversfile.Server{Command: "server", Args: []string{"x"}}, both, []string{"", "server", "x"}},
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

func TestCertificatesOfAuthoritiesAreReadFromTheVolume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roots.pem")
	commontest.OK(t, os.WriteFile(file, []byte("nothing"), 0o600))
	commontest.Check(t, trust(""))
	for _, name := range []string{file, file + "x"} {
		if err := trust(name); err == nil || !strings.Contains(err.Error(), "roots.pem") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhereSnapshotsAreKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		store, age string
		kept, ok   bool
		want       time.Duration
	}{
		{"", "", false, true, 14 * 24 * time.Hour},
		{"host", "", true, true, 14 * 24 * time.Hour},
		{"folder:/x", "", true, true, 14 * 24 * time.Hour},
		{"folder:/x", "3h", true, true, 3 * time.Hour},
		{"folder:/x", "0s", false, false, 0},
		{"folder:/x", "week", false, false, 0},
		{"folder:x", "", false, false, 0},
		{"s3:x", "", false, false, 0},
	} {
		k, err := newKeeping(c.store, c.age)
		if (err == nil) != c.ok || c.ok && (k.age != c.want || (k.folder != nil || k.host != nil) != c.kept) {
			t.Errorf("%q, %q: %+v, %v", c.store, c.age, k, err)
		}
	}
}

func TestOnlyWorkspacesThatAreAskedForAreKept(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	k, err := newKeeping("folder:"+filepath.Join(t.TempDir(), "snapshots"), "")
	commontest.OK(t, err)
	plain := serversfile.Server{Name: "x", Command: "a"}
	asked := plain
	asked.Box.Snapshot = serversfile.SnapshotSession
	if k.keeper(plain, "b", 1, t.TempDir(), log) != nil {
		t.Error("kept, and nothing asks for a workspace")
	}
	if k.keeper(asked, "b", 1, t.TempDir(), log) == nil {
		t.Error("not kept")
	}
	if (keeping{}).keeper(asked, "b", 1, t.TempDir(), log) != nil {
		t.Error("kept nowhere")
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
	b.remove()
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStatusFileForgetsWhatIsLongGone(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	b := newStatusFile(folder, "task", slog.New(slog.DiscardHandler))
	b.show(box.ProcessStatus{Process: "runs", State: box.Ready, PID: 1})
	for i := range 3 * maxGone {
		b.show(box.ProcessStatus{Process: fmt.Sprint("p", i), State: box.Stopped})
	}
	if n := len(shown(t, folder)); n != maxGone+1 || len(b.starts) > maxGone+1 {
		t.Errorf("%d are shown", n)
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
	line := strings.Repeat("x", 99) + "\n"
	for range 5000 { // about 8 times what is kept
		if _, err := w.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write([]byte("the end\n")); err != nil {
		t.Fatal(err)
	}
	commontest.OK(t, w.Close())
	names, bytes := kept(t, l.folder)
	if len(names) != 3 || strings.Contains(strings.Join(names, " "), "session-1") {
		t.Errorf("files are %v", names)
	}
	if bytes < maxLogHalf || bytes > 2*maxLogHalf {
		t.Errorf("%d bytes are kept, want one to two times %d", bytes, maxLogHalf)
	}
	end, err := os.ReadFile(filepath.Join(l.folder, names[0]))
	if err != nil || !strings.HasSuffix(string(end), "the end\n") {
		t.Errorf("%v: it ends with %q", err, end[max(0, len(end)-20):])
	}
}

// newLogs returns the logs of a server, and a function that writes the log of one process.
func newLogs(t *testing.T) (l *logFiles, process func(session string)) {
	t.Helper()
	l = &logFiles{folder: filepath.Join(t.TempDir(), "server"), log: slog.New(slog.DiscardHandler)}
	return l, func(session string) {
		t.Helper()
		w := l.open(session)
		if _, err := w.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
		commontest.OK(t, w.Close())
	}
}

func TestLogsOfTheNewestProcessesAreKept(t *testing.T) {
	l, process := newLogs(t)
	process("s")
	process("s")
	names, _ := kept(t, l.folder)
	old := time.Now().Add(-maxLogAge - time.Hour)
	for _, name := range []string{names[0], filepath.Base(served(l.folder, "s"))} {
		commontest.OK(t, os.Chtimes(filepath.Join(l.folder, name), old, old))
	}
	l.prune()
	if after, _ := kept(t, l.folder); len(after) != len(names)-1 { // whose they are stays with the other
		t.Errorf("%q are kept after one of %q became too old", after, names)
	}
	for n := range 2 * maxLogs {
		process(fmt.Sprintf("s%d", n))
	}
	l.prune() // as a process does that begins
	process("the last")
	if names, _ := kept(t, l.folder); len(names) != 2*maxLogs { // and whose they are
		t.Errorf("%d files are kept of %d logs", len(names), maxLogs)
	}
}

func TestLogFileLiesInItsFolderWhateverTheSessionIsCalled(t *testing.T) {
	for _, session := range []string{"", "..", "../../etc/passwd", "a/b", "a.b", strings.Repeat("x", 300), "ü"} {
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
	noted := func() []string {
		text, err := os.ReadFile(served(folder, "shared"))
		commontest.OK(t, err)
		if len(text) > maxShared+100 {
			t.Fatalf("it has %d bytes", len(text))
		}
		lines := strings.Fields(string(text))
		if lines[0] != "shared" {
			t.Fatalf("the process is %s", lines[0])
		}
		return lines[1:]
	}
	s := &sharing{folder: folder, log: slog.New(slog.DiscardHandler), known: map[string]bool{}}
	for range 3 {
		s.note("shared", "s1")
		s.note("shared", "s2")
		s.note("s3", "s3") // has its own
	}
	commontest.EqualIn(t, "noted", "s1 s2", strings.Join(noted(), " "))
	for n := range 3000 {
		s.note("shared", fmt.Sprintf("session-%032d", n))
	}
	all := noted()
	if last := all[len(all)-1]; last != fmt.Sprintf("session-%032d", 2999) || len(all) < 500 {
		t.Errorf("%d are noted, the last is %s", len(all), last)
	}
	if names, _ := kept(t, folder); len(names) != 1 {
		t.Errorf("files are %v", names)
	}
	var none *sharing
	none.note("shared", "s1")
}

func TestAServerGetsTheValuesOfItsSecrets(t *testing.T) {
	t.Setenv("DORMOUSE_ENV_TOKEN", "t0p")
	pipe := filepath.Join(t.TempDir(), "pipe")
	commontest.OK(t, syscall.Mkfifo(pipe, 0o600))
	s := serversfile.Server{
		Name: "x", Command: "/bin/sh", Args: []string{"-c", `printf %s "$TOKEN" > "$0"; cat`, pipe}, Env: map[string]string{"TOKEN": "ssm:/x/y"},
		StartupTimeout: time.Minute, ToolTimeout: time.Minute, AnswerTimeout: time.Minute,
	}
	log := slog.New(slog.DiscardHandler)
	b := newBox(s, setup{work: t.TempDir(), cache: t.TempDir(), env: ownEnvironment(), own: ownEnvironment()}, log)
	b.link = runner.New(runner.Config{
		Box: "t/x", Gen: 1, Executor: b, Log: log,
		Dial: func(context.Context, string, http.Header) (runner.Conn, error) {
			return nil, errors.New("nobody is there")
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- live(ctx, b.link, nil, func() *prepared { return &prepared{box: b, log: log} }) }()
	b.Deliver(runner.Delivery{
		ID: "d", Session: storage.ID("s"), Principal: "p", Init: json.RawMessage(`{}`),
		Raw: []byte(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`), // no call, for whose end a box would wait
	})
	got, err := os.ReadFile(pipe) // waits until somebody writes
	commontest.OK(t, err)
	commontest.EqualIn(t, "the server has the token", "t0p", string(got))
	cancel()
	if err := <-ended; err != nil {
		t.Log(err) // the relay was never there
	}
}
