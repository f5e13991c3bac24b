package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

func TestAFileIsReplacedWithItsPermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, want := range []struct {
		text string
		mode os.FileMode
	}{{"the first, which is longer", 0o644}, {"second", 0o600}} {
		commontest.OK(t, os.WriteFile(path+".new", []byte("what a crash has left behind"), 0o600))
		commontest.OK(t, durable.WriteFile(path, []byte(want.text), want.mode))
		got, err := os.ReadFile(path)
		info, gone := os.Stat(path)
		if err != nil || gone != nil || string(got) != want.text || info.Mode() != want.mode {
			t.Errorf("%q with %v, %v, %v; want %q with %v", got, info.Mode(), err, gone, want.text, want.mode)
		}
	}
	if left, err := filepath.Glob(path + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestTheOldFileStaysWhereTheNewOneCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	commontest.OK(t, os.WriteFile(path, []byte("old"), 0o600))
	commontest.OK(t, os.Mkdir(path+".new", 0o700))
	if err := durable.WriteFile(path, []byte("new"), 0o600); err == nil {
		t.Error("it was written over a folder")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	if err := durable.WriteFile(filepath.Dir(path), []byte("new"), 0o600); err == nil {
		t.Error("it was written in place of a folder")
	}
	if left, err := filepath.Glob(filepath.Dir(path) + ".new"); err != nil || left != nil {
		t.Errorf("it leaves %q, %v", left, err)
	}
	if err := durable.SyncFolder(path + ".gone"); err == nil {
		t.Error("a folder that is not there was synced")
	}
}
