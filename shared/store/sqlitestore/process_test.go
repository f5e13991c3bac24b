package sqlitestore

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// The test program is also the other process: with "child" as its first argument, it
// does what the other arguments say.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "child" {
		if err := child(os.Args[2], os.Args[3], os.Args[4:]); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(what, path string, args []string) error {
	ctx := context.Background()
	s, err := Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	switch what {
	case "create":
		return s.Create(ctx, storage.Session{ID: storage.ID(args[0]), Expires: time.Now().Add(time.Hour)})
	case "write":
		for i := storage.Index(1); ; i += crashEvents {
			if err := s.Append(ctx, crashBatch(i)); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(os.Stdout, i); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("a child cannot %s", what)
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	commontest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), self, append([]string{"child"}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

func TestProcessesThatOpenANewFileAtOnceAllSucceed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	const processes = 6
	var started []*exec.Cmd
	for i := range processes {
		cmd := command(t, "create", path, fmt.Sprint("s", i))
		commontest.OK(t, cmd.Start())
		started = append(started, cmd)
	}
	for _, cmd := range started {
		commontest.Check(t, cmd.Wait())
	}
	s := open(t, path)
	defer func() { _ = s.Close() }()
	list, err := s.List(t.Context(), "", "", 100)
	commontest.OK(t, err)
	commontest.SameIn(t, "sessions", processes, len(list))
}

const crashEvents = 100

func crashBatch(first storage.Index) storage.Batch {
	b := batch("r1", first)
	for i := range crashEvents {
		b.Events = append(b.Events, fmt.Appendf(nil, "%d %s", first+storage.Index(i), strings.Repeat("x", 1000)))
	}
	return b
}

func TestAKilledWriterLeavesWholeBatchesAndAllItWasToldOf(t *testing.T) {
	for round := range 3 {
		path := filepath.Join(t.TempDir(), fmt.Sprint(round, ".db"))
		cmd := command(t, "write", path)
		out, err := cmd.StdoutPipe()
		commontest.OK(t, err)
		commontest.OK(t, cmd.Start())
		told := storage.Index(0)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			n, err := strconv.Atoi(lines.Text())
			commontest.OK(t, err)
			told = storage.Index(n) + crashEvents - 1
			if told > storage.Index(10+round)*crashEvents && cmd.ProcessState == nil {
				_ = cmd.Process.Kill() // the test still reads the rest of the pipe
			}
		}
		_ = cmd.Wait()
		s := open(t, path)
		checkWhole(t, s, told)
		put(t, s, batch("r2", 1, `1`))
		commontest.OK(t, s.Close())
	}
}

// checkWhole reads the stream to its end. It must consist of whole batches, and reach at
// least told.
func checkWhole(t *testing.T, s *Store, told storage.Index) {
	t.Helper()
	after := storage.Index(0)
	for more := true; more; {
		p := read(t, s, "r1", after)
		for _, e := range p.Events {
			if e.Index != after+1 || !strings.HasPrefix(string(e.Raw), fmt.Sprint(e.Index, " x")) || len(e.Raw) < 1000 {
				t.Fatalf("event %d after %d is %.20q, %d bytes", e.Index, after, e.Raw, len(e.Raw))
			}
			after = e.Index
		}
		more = p.More
	}
	if after < told || after%crashEvents != 0 || told == 0 {
		t.Errorf("the log ends at %d; the writer was told of %d", after, told)
	}
	tail, err := s.Tail(t.Context(), "s1", "r1")
	commontest.OK(t, err)
	commontest.SameIn(t, "Tail", after, tail.Last)
}
