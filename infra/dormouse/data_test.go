package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An image of a container names the data folder once, for all commands.
func TestDataFolderOfTheEnvironmentServesEveryCommand(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	t.Setenv(dataEnv, folder)
	say := func(args ...string) (int, string) {
		var out bytes.Buffer
		return execute(args, &terminal{in: strings.NewReader(""), out: &out, err: &out, now: time.Now}), out.String()
	}
	if code, said := say("ps"); code != exitNotUp || !strings.Contains(said, folder) {
		t.Errorf("ps: %d %s", code, said)
	}
	if code, said := say("keys", "create", "ada", "--all-servers"); code != exitDone {
		t.Errorf("keys create: %d %s", code, said)
	}
	if _, err := os.Stat(filepath.Join(folder, "store.db")); err != nil {
		t.Error(err)
	}
	// --data wins over the environment.
	if code, said := say("ps", "--data", folder+"2"); code != exitNotUp || !strings.Contains(said, folder+"2") {
		t.Errorf("ps --data: %d %s", code, said)
	}
}
