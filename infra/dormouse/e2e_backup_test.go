//go:build e2e

package dormouse_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A backup of a machine that is in use brings back its sessions and keys, and what was there is
// kept. What is no backup changes nothing.
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
		c.calls(func(n int) bool { return n < 50 }) // calls go on meanwhile
	}()
	m.does("backup", copied)
	<-ended
	if said, err := m.tries("restore", copied); err == nil {
		t.Errorf("a folder in use was restored: %s", said)
	}
	m.interrupt()
	store, whole := filepath.Join(m.data, local.StoreFile), read(t, copied)
	before := read(t, store)
	for name, text := range map[string]string{"cut": whole[:len(whole)/2], "text": "no backup", "empty": ""} {
		file := filepath.Join(t.TempDir(), name)
		write(t, file, text)
		if said, err := m.tries("restore", file); err == nil || read(t, store) != before {
			t.Errorf("a backup that is %s was restored: %s", name, said)
		}
	}
	commontest.OK(t, os.Truncate(store, 4096))
	commontest.Contains(t, "restore said", "before-restore-", m.does("restore", copied))
	m.start(append(sleepy(), "--access", "keys")...)
	again := m.again(c, "one")
	again.key = key
	_, err := again.call("echo", `{"text":"again"}`)
	commontest.Check(t, err)
	info, err := os.Stat(copied)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v %v", info, err)
	}
}
