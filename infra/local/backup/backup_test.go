package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A server writes to its workspace while a backup is made, and a disk may fail for one file.
func TestAFileThatChangesMeanwhileHasTheSizeThatWasPromised(t *testing.T) {
	var b bytes.Buffer
	a := &archive{ctx: t.Context(), out: tar.NewWriter(&b)}
	for _, content := range []io.Reader{
		strings.NewReader("abc"), strings.NewReader(""), strings.NewReader(strings.Repeat("x", 100)),
		io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(syscall.EIO)),
	} {
		commontest.OK(t, a.content(&tar.Header{Name: "a", Size: 10}, content))
	}
	commontest.OK(t, a.out.Close())
	in := tar.NewReader(&b)
	for _, want := range []string{"abc\x00\x00\x00\x00\x00\x00\x00", strings.Repeat("\x00", 10), "xxxxxxxxxx", "abc\x00\x00\x00\x00\x00\x00\x00"} {
		_, err := in.Next()
		commontest.OK(t, err)
		if got, err := io.ReadAll(in); err != nil || string(got) != want {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if len(a.Unread) != 1 || a.Unread[0] != "a: input/output error" {
		t.Errorf("unread: %q", a.Unread)
	}
}

// Between the look at a folder and the open of what it has, a server may put a link in its
// place, also of a folder.
func TestWhatWasReplacedIsLeftOut(t *testing.T) {
	folder := t.TempDir()
	commontest.OK(t, errors.Join(
		os.WriteFile(filepath.Join(folder, "secret"), []byte("secret"), 0o600),
		os.MkdirAll(filepath.Join(folder, "keys", "deep"), 0o700),
		os.WriteFile(filepath.Join(folder, "keys", "deep", "key"), []byte("secret"), 0o600),
		os.Symlink("secret", filepath.Join(folder, "link")), syscall.Mkfifo(filepath.Join(folder, "pipe"), 0o600),
		os.Symlink("keys", filepath.Join(folder, "inside")), os.Symlink("/etc", filepath.Join(folder, "outside")),
	))
	root, err := os.OpenRoot(folder)
	commontest.OK(t, err)
	defer func() { _ = root.Close() }()
	var b bytes.Buffer
	a := &archive{ctx: t.Context(), out: tar.NewWriter(&b)}
	for _, name := range []string{"link", "pipe", "keys", "gone"} {
		if err := a.file(root, name, "x/"+name); err != nil || b.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, b.Len())
		}
	}
	for _, name := range []string{"inside", "outside", "secret", "gone"} {
		if err := a.enter(root, name, "x/"+name); err != nil || b.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, b.Len())
		}
	}
	if a.Unread != nil {
		t.Errorf("unread: %q", a.Unread)
	}
}

// A file that cannot be read is named, and the rest is in the backup; but not without the
// secret.
func TestABackupNamesWhatItLacks(t *testing.T) {
	a := &archive{}
	denied := &os.PathError{Op: "openat", Path: "notes", Err: syscall.EACCES}
	if err := a.lacks("workspaces/notes", denied); err != nil || len(a.Unread) != 1 || a.Unread[0] != "workspaces/notes: permission denied" {
		t.Errorf("%v, %q", err, a.Unread)
	}
	if err := a.lacks(datafolder.SecretFile, denied); err == nil {
		t.Error("a backup without the secret is one")
	}
}

// With the units of systemd the cache of installs is in the data folder.
func TestTheCacheIsInNoBackup(t *testing.T) {
	folder := t.TempDir()
	installed := filepath.Join(folder, "cache", "npm")
	commontest.OK(t, errors.Join(
		os.WriteFile(filepath.Join(folder, datafolder.SecretFile), []byte(strings.Repeat("ab", 32)), 0o600),
		os.MkdirAll(installed, 0o700), os.WriteFile(filepath.Join(installed, "a"), []byte("text"), 0o600),
	))
	if s, err := Write(t.Context(), folder, "", io.Discard); err != nil || s.Files != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

// The copy of the store is checked before anything is changed.
func TestADamagedStoreIsNotRestored(t *testing.T) {
	var b bytes.Buffer
	packed := gzip.NewWriter(&b)
	a := &archive{ctx: t.Context(), out: tar.NewWriter(packed)}
	for name, text := range map[string]string{datafolder.SecretFile: strings.Repeat("ab", 32), "store.db": "a text, and no database at all"} {
		head := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Uid: os.Getuid(), Gid: os.Getgid()}
		commontest.OK(t, a.content(head, strings.NewReader(text)))
	}
	commontest.OK(t, errors.Join(a.out.Close(), packed.Close()))
	if _, kept, err := Read(t.Context(), t.TempDir(), &b); err == nil || kept != "" {
		t.Errorf("it was restored: %v, and %q has what was there", err, kept)
	}
	if _, _, err := Read(t.Context(), t.TempDir(), iotest.ErrReader(&os.PathError{Op: "write", Err: syscall.ENOSPC})); !strings.Contains(err.Error(), "cannot be unpacked") {
		t.Errorf("on a full disk it says %v", err)
	}
}

// What is restored has the owners, times and modes of before, as far as this user may.
func TestRestoreKeepsOwners(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	notes := filepath.Join(from, "workspaces", "notes")
	commontest.OK(t, errors.Join(
		os.WriteFile(filepath.Join(from, datafolder.SecretFile), []byte(strings.Repeat("ab", 32)), 0o600),
		os.MkdirAll(notes, 0o750), os.Chmod(notes, 0o750), os.WriteFile(filepath.Join(notes, "a"), []byte("text"), 0o640),
	))
	owner := os.Getuid()
	if owner == 0 {
		owner = 12345
		for _, path := range []string{notes, filepath.Join(notes, "a")} {
			commontest.OK(t, os.Chown(path, owner, owner))
		}
	}
	var b bytes.Buffer
	if s, err := Write(t.Context(), from, "", &b); err != nil || s.Unread != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	s, _, err := Read(t.Context(), to, &b)
	if err != nil || s.Disowned > 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	for path, mode := range map[string]os.FileMode{"workspaces/notes": 0o750, "workspaces/notes/a": 0o640} {
		info, err := os.Stat(filepath.Join(to, path))
		commontest.OK(t, err)
		if uid, _ := ownerOf(info); uid != owner || info.Mode().Perm() != mode {
			t.Errorf("%s belongs to %d and has mode %v", path, uid, info.Mode())
		}
	}
}
