package dormouse

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An image of a container names the data folder once, for all commands.
func TestDataFolderOfTheEnvironmentServesEveryCommand(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	t.Setenv(dataEnv, folder)
	s := newShell(t)
	if said, code := s.run("ps"); code != exitNotUp || !strings.Contains(said, folder) {
		t.Errorf("ps: %d %s", code, said)
	}
	if said, code := s.run("keys create ada --all-servers"); code != exitDone {
		t.Errorf("keys create: %d %s", code, said)
	}
	if _, err := os.Stat(filepath.Join(folder, "store.db")); err != nil {
		t.Error(err)
	}
	// --data wins over the environment.
	if said, code := s.run("ps --data " + folder + "2"); code != exitNotUp || !strings.Contains(said, folder+"2") {
		t.Errorf("ps --data: %d %s", code, said)
	}
}
