package datafolder_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func open(t *testing.T, path string) *datafolder.Folder {
	t.Helper()
	f, err := datafolder.Open(path)
	commontest.OK(t, err)
	t.Cleanup(f.Close)
	return f
}

func TestAFolderIsOneProgramsAndKeepsItsSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	if _, _, err := datafolder.Control(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("where nothing was ever run: %v", err)
	}
	f := open(t, path)
	want := fmt.Sprintf("%s is in use by another dormouse run, process %d; stop that one or name another folder with --data", path, os.Getpid())
	if second, err := datafolder.Open(path); err == nil || err.Error() != want {
		t.Errorf("a second program: %v, want %s", err, want)
	} else {
		second.Close()
	}
	socket, key, err := datafolder.Control(path)
	if err != nil || socket != f.Socket("control") || key != f.Key() || len(f.Secret) < 32 {
		t.Errorf("callers look for %s with %s, %v", socket, key, err)
	}
	f.Close()
	if again := open(t, path); !bytes.Equal(again.Secret, f.Secret) {
		t.Error("the secret is another one the second time")
	}
}

func TestASecretThatIsDamagedIsNotReplaced(t *testing.T) {
	path := t.TempDir()
	commontest.OK(t, os.WriteFile(filepath.Join(path, "secret"), []byte("abcd"), 0o600))
	if f, err := datafolder.Open(path); err == nil || !strings.Contains(err.Error(), "restore it from a backup; without one, delete it, and registrations") {
		t.Error(err)
	} else {
		f.Close()
	}
}

// The path of a unix socket may have at most 104 bytes on macOS.
func TestSocketsOfAFolderWithALongNameAreElsewhere(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp")
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	f := open(t, path)
	socket, _, err := datafolder.Control(path)
	if err != nil || socket != f.Socket("control") || len(socket) > 100 {
		t.Errorf("%d bytes: %s, %s, %v", len(socket), socket, f.Socket("control"), err)
	}
}

func TestSocketsInAFolderOfAnotherUserGetNoKey(t *testing.T) {
	f, err := datafolder.Open(filepath.Join(t.TempDir(), strings.Repeat("long", 20)))
	commontest.OK(t, err)
	t.Cleanup(f.Close)
	socket, key, err := datafolder.Control(f.Path)
	if err != nil || key == "" {
		t.Fatal(socket, err)
	}
	made := os.Mkdir(filepath.Dir(socket), 0o700)
	if err := os.Chown(filepath.Dir(socket), 65534, -1); err != nil {
		t.Log("not shown: only root gives a folder to another user:", made, err)
		return
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(socket)) })
	if socket, key, err := datafolder.Control(f.Path); err == nil || key != "" {
		t.Errorf("%s gets %q", socket, key)
	}
}
