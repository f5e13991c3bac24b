//go:build e2e

package dormouse_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A backup of a machine that is in use brings back its sessions, keys and workspaces in
// another folder, and what was there is kept.
func TestE2EABackupOfARunningMachineIsRestored(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.programs = false // programs that are killed leave a write-ahead log, which mends the file
	m.start(append(sleepy(), "--access", "keys")...)
	key := m.keys("create", "ada", "--all-servers")
	c := m.as(key, "one")
	copied := filepath.Join(t.TempDir(), "copy.tar.gz")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.latencies(func(n int) bool { return n < 50 }) // calls go on meanwhile
	}()
	m.does("backup", copied)
	<-ended
	if said, _ := m.tries("doctor", "--servers", m.servers); !strings.Contains(said, "✓ store") {
		t.Errorf("doctor said %s", said)
	}
	if said, err := m.tries("restore", copied); err == nil {
		t.Errorf("a folder in use was restored: %s", said)
	}
	m.interrupt()
	commontest.OK(t, os.Truncate(filepath.Join(m.data, local.StoreFile), 4096))
	if said, err := m.tries("doctor", "--servers", m.servers); err == nil || !strings.Contains(said, "✗ store") {
		t.Errorf("a damaged store is whole: %s", said)
	}
	commontest.Contains(t, "restore said", "before-restore-", m.does("restore", copied))
	m.start(append(sleepy(), "--access", "keys")...)
	again := m.again(c, "one")
	again.key = key
	if _, err := again.call("echo", `{"text":"again"}`); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(copied)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v %v", info, err)
	}
}

func TestE2EWhatIsNoBackupChangesNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start(sleepy()...)
	copied := filepath.Join(t.TempDir(), "copy.tar.gz")
	m.does("backup", copied)
	m.interrupt()
	whole := read(t, copied)
	before := read(t, filepath.Join(m.data, "secret"))
	for name, text := range map[string]string{"cut": whole[:len(whole)/2], "text": "no backup", "empty": ""} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bad")
			write(t, file, text)
			if said, err := m.tries("restore", file); err == nil || !strings.Contains(said, "nothing was changed") {
				t.Errorf("%s: %v %s", name, err, said)
			}
		})
	}
	if read(t, filepath.Join(m.data, "secret")) != before {
		t.Error("the secret is another one")
	}
	m.start(sleepy()...)
}
