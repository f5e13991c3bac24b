//go:build e2e

package dormouse_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// smallDisk mounts a disk of some megabytes, which needs root.
func smallDisk(t *testing.T, megabytes string) string {
	t.Helper()
	at := t.TempDir()
	if err := syscall.Mount("tmpfs", at, "tmpfs", 0, "size="+megabytes+"m"); err != nil {
		t.Fatalf("mount a small disk: %v; this test needs root", err)
	}
	t.Cleanup(func() {
		commontest.Check(t, syscall.Unmount(at, syscall.MNT_DETACH))
	})
	return at
}

// fill fills a disk up, and returns a function that makes room again.
func fill(t *testing.T, disk string) (free func()) {
	t.Helper()
	path := filepath.Join(disk, "filler")
	f, err := os.Create(path)
	commontest.OK(t, err)
	for _, size := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk was not filled: %v", err)
		}
	}
	_ = f.Close()
	return func() {
		commontest.Check(t, os.Remove(path))
	}
}

// toldOfTheDisk checks that everybody is told that the disk is full, and that nothing is executed.
func (m *machine) toldOfTheDisk(c *client) {
	m.t.Helper()
	m.eventually(patience, "the machine is not healthy", func() bool {
		status, body := m.health("one")
		return status == http.StatusServiceUnavailable && body == "store: failed\n"
	})
	m.await(patience, "the terminal is told", func(e event) bool {
		return e.Kind == "folder.trouble" && strings.Contains(e.Reason, "is full") && strings.Contains(e.Reason, "free some room")
	})
	before := read(m.t, m.calls)
	if answer := c.outcome("echo", `{"text":"on a full disk"}`); answer.Error == nil || !strings.Contains(string(answer.Error), "is full") {
		m.t.Errorf("the client is told %s", answer.Raw)
	}
	commontest.EqualIn(m.t, "it was executed", before, read(m.t, m.calls))
	if said, err := m.tries("doctor", "--servers", m.servers); err == nil || !strings.Contains(said, "✗ store") {
		m.t.Errorf("doctor says %v %s", err, said)
	}
}

// A disk that gets full under a running machine is told everywhere, nothing is executed, and
// the machine goes on when there is room. A stop does not wait for what cannot be stored.
func TestE2EAFullDiskIsToldAndGoesOnWithRoom(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "40")
	m := recorded(t)
	m.programs = false
	m.data = filepath.Join(disk, "data")
	m.start()
	c := m.session("one")
	if got := c.text("echo", `{"text":"before"}`); got != "before" {
		t.Fatalf("got %s", got)
	}
	w := c.begin()
	w.progress(t, 1, 2)
	free := fill(t, disk)
	w.open(t)
	m.toldOfTheDisk(c)
	// The response to the call in flight ends, and its client comes back until there is room.
	stop := time.AfterFunc(20*time.Second, w.stream.close)
	defer stop.Stop()
	_, err := w.stream.messages()
	commontest.CheckIn(t, "the response to the call in flight does not end", err)
	free()
	m.await(patience, "the terminal says that it goes on", func(e event) bool { return e.Kind == "folder.well" })
	ctx, cancel := c.patience()
	defer cancel()
	s, err := c.resume(w.stream.last)
	commontest.OK(t, err)
	if messages, err := c.follow(ctx, s, w.id); err != nil {
		t.Error(err)
	} else if last := messages[len(messages)-1]; last.Kind != wire.Response || last.Error != nil {
		t.Errorf("the call in flight ended with %s", last.Raw)
	}
	commontest.Equal(t, "after", c.text("echo", `{"text":"after"}`))
	if status, body := m.health("one"); status != http.StatusOK {
		t.Errorf("health: %d %s", status, body)
	}

	_ = fill(t, disk)
	m.toldOfTheDisk(c)
	m.terminate()
	m.ended(patience)
}
