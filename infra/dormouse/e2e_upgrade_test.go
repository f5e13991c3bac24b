//go:build e2e && upgrade

package dormouse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const (
	releasesFile = "../stack/releases.txt"
	releasesKept = "../../.tools/releases"
)

// During a deployment, functions and runners of two releases work on one table. This test
// exchanges them one after the other, in the order of make deploy and back, while clients
// of all kinds wait for something.
func TestUpgradeOnOneTable(t *testing.T) {
	t.Parallel()
	endpoint := dynamoDB(t)
	ours := absolute(t, programs)
	for _, commit := range releases(t) {
		theirs := build(t, commit)
		for name, way := range map[string][2]string{"forward": {theirs, ours}, "back": {ours, theirs}} {
			t.Run(name+" "+commit[:7], func(t *testing.T) {
				t.Parallel()
				m := rollingMachine(t, way[0])
				m.start("--store", "dynamodb:upgrade-"+storage.NewNonce()+"?endpoint="+endpoint, "--runner", filepath.Join(m.bin, "runner"), "--idle", idle.String())
				l := m.live(way[0])
				// make deploy pushes the image of the boxes first. CloudFormation then
				// replaces the functions in any order.
				for _, next := range [][]string{{"runner"}, {"relay"}, {"http", "oauth", "console"}, {"socket", "sweep"}} {
					m.exchange(way[1], next...)
					l.goOn(way[1], next)
				}
				l.end()
			})
		}
	}
}

// This release works with a data folder of an earlier release. If the earlier release
// starts on the folder again, it runs or ends, and does no harm to the data.
func TestUpgradeOfADataFolder(t *testing.T) {
	t.Parallel()
	for _, commit := range releases(t) {
		theirs := filepath.Join(build(t, commit), "dormouse")
		t.Run(commit[:7], func(t *testing.T) {
			t.Parallel()
			calls := t.TempDir()
			m := machineOf(t, hostedForUpgrades(t, calls))
			m.program = theirs
			m.run("--json", "--idle", idle.String()) // the flags that all releases have
			m.ready()
			w := m.wait(calls)
			m.killAll()
			m.program = ""
			m.start("--idle", idle.String())
			w.asleep, w.asked = m.again(w.asleep, "asleep"), m.again(w.asked, "question")
			w.wakes("this release", nil)
			w.finish()
			m.interrupt()

			// An earlier release with another schema must end and not write into the
			// file.
			m.program = theirs
			m.run("--json", "--idle", idle.String())
			m.eventually(patience, "the earlier release is ready or has ended", func() bool { return !m.running() || m.count("ready") > 0 })
			if m.running() {
				m.killAll()
			}
			m.program = ""
			m.start("--idle", idle.String())
			w.asleep = m.again(w.asleep, "asleep")
			w.wakes("this release after the earlier one", nil)
		})
	}
}

// releases returns the commits of the last two releases, oldest first, from releasesFile.
// With DORMOUSE_TEST_RELEASES=last it returns only the last one.
func releases(t *testing.T) (commits []string) {
	t.Helper()
	for line := range strings.Lines(read(t, releasesFile)) {
		if commit, _, _ := strings.Cut(strings.TrimSpace(line), " "); commit != "" && commit != "#" {
			commits = append(commits, commit)
		}
	}
	if len(commits) != 2 {
		t.Fatalf("%s names %d releases, want the last two", releasesFile, len(commits))
	}
	if os.Getenv("DORMOUSE_TEST_RELEASES") == "last" {
		return commits[1:]
	}
	return commits
}

// building is held while a release is built.
var building sync.Mutex

// build returns the folder with the programs of a commit, which it builds once.
func build(t *testing.T, commit string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	mkdir(t, releasesKept)
	folder := filepath.Join(absolute(t, releasesKept), commit)
	if _, err := os.Stat(folder); err == nil {
		return folder
	}
	archive, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "archive", "--format=tar", commit).Output() //nolint:gosec // of our own file
	if err != nil {
		t.Fatalf("the sources of release %s: %v; the clone must have its whole history", commit, err)
	}
	source, made := t.TempDir(), folder+storage.NewNonce()
	defer func() { _ = os.RemoveAll(made) }() // it is there only if something failed
	command := func(stdin io.Reader, line ...string) {
		cmd := exec.CommandContext(t.Context(), line[0], line[1:]...) //nolint:gosec // our own lines
		cmd.Dir, cmd.Stdin, cmd.Env = source, stdin, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(line, " "), err, out)
		}
	}
	command(bytes.NewReader(archive), "tar", "-x")
	mkdir(t, made)
	line := []string{"go", "build", "-trimpath", "-tags", "lambda.norpc", "-ldflags", "-s -w", "-o", made, "./infra/cmd/dormouse"}
	if _, err := os.Stat(filepath.Join(source, "infra/cmd/dormouse")); err != nil { // of releases before it moved
		line[len(line)-1] = "./infra/dormouse"
	}
	mains, err := filepath.Glob(filepath.Join(source, "functions", "*", "main.go"))
	commontest.OK(t, err)
	for _, main := range mains {
		line = append(line, "./functions/"+filepath.Base(filepath.Dir(main)))
	}
	command(nil, line...)
	command(nil, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(made, "runner"), "./infra/runner/cmd")
	commontest.OK(t, os.Rename(made, folder))
	return folder
}

// executable writes a file that is executed.
func executable(t *testing.T, file, text string) {
	t.Helper()
	write(t, file, text)
	if err := os.Chmod(file, 0o755); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	all, err := filepath.Abs(path)
	if err == nil {
		all, err = filepath.EvalSymlinks(all)
	}
	commontest.OK(t, err)
	return all
}

// rolling is a machine whose functions and runners may be exchanged while it runs.
type rolling struct {
	*machine
	bin   string         // scripts in the place of the programs
	file  map[string]any // mcpServers
	calls string         // a folder with a file for each server, of the tools that it ran
}

// rollingMachine returns a machine that begins with the programs of a folder. It is not
// started.
func rollingMachine(t *testing.T, folder string) *rolling {
	t.Helper()
	r := &rolling{bin: t.TempDir(), calls: t.TempDir()}
	r.file = hostedForUpgrades(t, r.calls)
	r.machine = machineOf(t, r.file).asPrograms()
	// A function that was not used for a while would have no process to look at.
	r.emulator.Programs, r.emulator.SleepAfter = r.bin, 10*time.Minute
	for _, name := range []string{"http", "socket", "relay", "sweep", "oauth", "console", "runner"} {
		script := fmt.Sprintf("#!/bin/sh\nexec \"$(cat '%s')\" \"$@\"\n", r.chosen(name))
		executable(t, filepath.Join(r.bin, name), script)
		r.choose(folder, name)
	}
	return r
}

// hostedForUpgrades returns mcpServers. Each server writes the tools that it ran into a
// file of its name.
func hostedForUpgrades(t *testing.T, calls string) map[string]any {
	t.Helper()
	legacy := stdio(t)
	later := modern(t)
	file := map[string]any{}
	for _, name := range []string{"awake", "asleep", "socket"} {
		file[name] = map[string]any{"command": legacy, "args": []string{"-name", name, "-calls", filepath.Join(calls, name)}}
	}
	for _, name := range []string{"question", "task"} {
		file[name] = map[string]any{"command": later, "args": []string{"-calls", filepath.Join(calls, name)}}
	}
	return file
}

// chosen returns the file that names the program to execute.
func (r *rolling) chosen(name string) string { return filepath.Join(r.bin, name+".chosen") }

// choose has processes that start from now on execute the program of a folder.
func (r *rolling) choose(folder, name string) {
	r.t.Helper()
	write(r.t, r.chosen(name), r.programOf(folder, name))
}

// programOf returns the program of a folder, or ours if it has none.
func (r *rolling) programOf(folder, name string) string {
	r.t.Helper()
	program := filepath.Join(folder, name)
	if _, err := os.Stat(program); err != nil {
		program = filepath.Join(absolute(r.t, programs), name)
	}
	return program
}

// exchange deploys programs of a folder: from now on, invocations and boxes that begin get
// them. Those that have begun end with the programs that they have.
func (r *rolling) exchange(folder string, names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.choose(folder, name)
	}
	// The machine replaces processes of functions when the servers file has changed.
	r.file["unused"+names[0]] = map[string]any{"command": "true"}
	text, err := json.Marshal(map[string]any{"mcpServers": r.file})
	commontest.OK(r.t, err)
	before := r.count("servers.changed")
	write(r.t, r.servers, string(text))
	r.changed(before)
}

// runsFrom reports whether a process runs a program of a folder, or ours if it has none.
func (r *rolling) runsFrom(folder, name string) bool {
	return slices.ContainsFunc(r.those(name), func(p process) bool {
		file, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
		return err == nil && file == r.programOf(folder, name)
	})
}

// waiting is what waits in the store of a machine while nothing runs for it.
type waiting struct {
	*machine
	calls string // see rolling

	asleep   *client // a session whose box sleeps
	asked    *client // a call that waits for its client's answer
	question wire.Message
	last     string // the event id of the question
	task     string // a task that waits in the same way
}

// wait makes everything that is to wait, and returns when no box runs.
func (m *machine) wait(calls string) *waiting {
	m.t.Helper()
	w := &waiting{machine: m, calls: calls, asleep: m.session("asleep"), asked: m.session("question")}
	w.wakes("the start", nil)
	s, err := w.asked.post(w.asked.request("77", "book", ""))
	commontest.OK(m.t, err)
	if w.question, w.last, err = w.asked.question(s); err != nil {
		m.t.Fatal(err)
	}
	var made taskState
	m.client("task").about("tools/call", "plan", `"name":"plan","arguments":{}`, &made)
	w.task = made.TaskID
	m.client("task").until(w.task, "input_required")
	m.eventually(asleepWithin, "all boxes sleep", func() bool { return len(m.those("runner", "stdio", "modern")) == 0 })
	return w
}

// wakes calls the server whose box sleeps, then calls awake if it is not nil, and waits
// until the box sleeps again.
func (w *waiting) wakes(step string, awake func()) {
	w.t.Helper()
	if got := w.asleep.text("count", ""); got != "1" {
		w.t.Errorf("%s: the counter says %s, want 1 of a new process", step, got)
	}
	if awake != nil {
		awake()
	}
	w.eventually(asleepWithin, step+": the box sleeps", func() bool {
		return !slices.ContainsFunc(w.processes(), func(p process) bool { return p.server == "asleep" })
	})
}

// finish answers all questions, and checks that everything was executed once.
func (w *waiting) finish() {
	w.t.Helper()
	w.answer()
	ranThrice(w.t, "book", filepath.Join(w.calls, "question"))
	for _, answer := range answers {
		w.client("task").answers(w.task, answer)
	}
	w.client("task").completes(w.task, filepath.Join(w.calls, "task"))
}

// answer answers the questions of the call that waits, until it ends.
func (w *waiting) answer() {
	w.t.Helper()
	q, last := w.question, w.last
	for round, answer := range answers {
		commontest.OK(w.t, w.asked.tell(answerTo(q, answer)))
		s, err := w.asked.resume(last)
		commontest.OK(w.t, err)
		if round < len(answers)-1 {
			if q, last, err = w.asked.question(s); err != nil {
				w.t.Fatal(err)
			}
			continue
		}
		ctx, cancel := w.asked.patience()
		defer cancel()
		messages, err := w.asked.follow(ctx, s, "77")
		commontest.OK(w.t, err)
		commontest.EqualIn(w.t, "the call that asked ended with", booked, textOf(messages[len(messages)-1]))
	}
}

// living is what is alive on a machine while its programs are exchanged.
type living struct {
	*rolling
	waits  *waiting
	awake  *client // a process that runs, with a call in flight
	pid    int     // of that process
	work   work
	socket *socket
	said   int // calls over the socket
}

// live makes everything that is to outlive the exchange, with the programs of a folder.
func (r *rolling) live(folder string) *living {
	r.t.Helper()
	l := &living{rolling: r, waits: r.wait(r.calls), awake: r.session("awake"), socket: r.talk("socket")}
	l.pid = l.awake.whoami().PID
	l.work = l.awake.begin()
	l.work.progress(r.t, 1, 3)
	for _, name := range []string{"runner", "relay", "http", "socket"} {
		if !r.runsFrom(folder, name) {
			r.t.Errorf("%s does not run from %s", name, folder)
		}
	}
	return l
}

// goOn makes checks after programs were exchanged for those of a folder. A session still
// has its running process, a sleeping box wakes, and a WebSocket is still served.
func (l *living) goOn(folder string, exchanged []string) {
	l.t.Helper()
	step := strings.Join(exchanged, " and ")
	if got := l.awake.whoami().PID; got != l.pid {
		l.t.Errorf("%s: the process is %d, was %d", step, got, l.pid)
	}
	l.said++
	if got := l.socket.text("echo", fmt.Sprintf(`{"text":"%d"}`, l.said)); got != fmt.Sprint(l.said) {
		l.t.Errorf("%s: echo over a WebSocket says %q", step, got)
	}
	l.waits.wakes(step, func() {
		// These functions may not run: no user has signed in, and the sweep runs every
		// five minutes.
		seldom := []string{"oauth", "console", "sweep"}
		for _, name := range slices.DeleteFunc(exchanged, func(name string) bool { return slices.Contains(seldom, name) }) {
			if !l.runsFrom(folder, name) {
				l.t.Errorf("%s does not run from %s", name, folder)
			}
		}
	})
}

// end lets everything end, and checks that all of it was executed once.
func (l *living) end() {
	l.t.Helper()
	l.work.open(l.t)
	ctx, cancel := l.awake.patience()
	defer cancel()
	messages, err := l.awake.follow(ctx, l.work.stream, l.work.id)
	commontest.OK(l.t, err)
	commontest.SameIn(l.t, "the end of the call in flight", []string{"progress 4", "progress 5", "response " + l.work.id}, ended(messages))
	if n := strings.Count(read(l.t, filepath.Join(l.calls, "awake")), "work"); n != 1 {
		l.t.Errorf("the call in flight was run %d times", n)
	}
	commontest.EqualIn(l.t, "echo over another WebSocket of the session says", "again", l.resume("socket", l.socket).text("echo", `{"text":"again"}`))
	l.waits.finish()
}
