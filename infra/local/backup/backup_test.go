package backup

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A server writes to its workspace while a backup is made.
func TestAFileThatChangesMeanwhileHasTheSizeThatWasPromised(t *testing.T) {
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, content := range []string{"abc", "", strings.Repeat("x", 100)} {
		if err := addContent(out, &tar.Header{Name: "a", Size: 10}, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	in := tar.NewReader(&b)
	for _, want := range []string{"abc\x00\x00\x00\x00\x00\x00\x00", strings.Repeat("\x00", 10), "xxxxxxxxxx"} {
		if _, err := in.Next(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(in); err != nil || string(got) != want {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

// Between the look at a folder and the open of a file a server may replace the file.
func TestAFileThatWasReplacedIsLeftOut(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink("secret", filepath.Join(folder, "link")), syscall.Mkfifo(filepath.Join(folder, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, name := range []string{"link", "pipe", "."} {
		if _, err := addFile(tar.NewWriter(&b), name, filepath.Join(folder, name)); !errors.Is(err, fs.ErrNotExist) || b.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, b.Len())
		}
	}
}
