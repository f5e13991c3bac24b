package sqlitestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestLookSaysWhatOpenWouldRefuse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store.db")
	if err := look(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	s, err := Open(path)
	commontest.OK(t, err)
	commontest.CheckIn(t, "an open store", look(path))
	commontest.OK(t, s.Close())
	before, err := os.ReadFile(path)
	commontest.OK(t, err)
	commontest.CheckIn(t, "a closed store", look(path))
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("it has changed the file: %v", err)
	}
	execute(t, path, fmt.Sprintf("PRAGMA user_version=%d", schemaVersion+1))
	other, empty := filepath.Join(dir, "other"), filepath.Join(dir, "empty")
	for file, text := range map[string]string{other: strings.Repeat("no store ", 20), empty: ""} {
		commontest.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	pipe := filepath.Join(dir, "pipe")
	commontest.OK(t, syscall.Mkfifo(pipe, 0o600))
	if err := look(pipe); err == nil || !strings.Contains(err.Error(), "is not a session store") {
		t.Errorf("a pipe: %v", err)
	}
	for file, want := range map[string]string{path: "was written by a newer version", other: "is not a session store", empty: "<nil>"} {
		err := look(file)
		if text := fmt.Sprint(err); !strings.Contains(text, want) {
			t.Errorf("%s: %v, want %s", file, err, want)
		}
		if opened, problem := Open(file); (problem == nil) != (err == nil) {
			t.Errorf("%s: Open says %v", file, problem)
		} else if problem == nil {
			_ = opened.Close()
		}
	}
}
