package runner

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

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
