package snapshot

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// install is a folder as npm and uv leave it.
func install(t *testing.T) string {
	t.Helper()
	dir := workspace(t, files{
		"node_modules/a/index.js": "a", "node_modules/.bin/a": "-> ../a/index.js", "venv/bin/python": "-> /usr/bin/python3",
		".cache/x": "kept too", "compiled/v24/0": "code", "empty": "/",
	})
	commontest.OK(t, os.Link(filepath.Join(dir, "node_modules/a/index.js"), filepath.Join(t.TempDir(), "of the installer's cache")))
	for name, mode := range map[string]os.FileMode{"node_modules/a/index.js": 0o755, "compiled/v24": 0o555} {
		commontest.OK(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	return dir
}

func TestAWholeFolderComesBackAsItWas(t *testing.T) {
	t.Parallel()
	from, to := install(t), workspace(t, nil)
	var archive bytes.Buffer
	must(t, Pack(t.Context(), &archive, from, Limits{}), Unpack(t.Context(), &archive, to, Limits{}))
	for name, want := range map[string]string{"node_modules/.bin/a": "../a/index.js", "venv/bin/python": "/usr/bin/python3"} {
		t.Run(name, func(t *testing.T) {
			if link, err := os.Readlink(filepath.Join(to, name)); err != nil || link != want {
				t.Errorf("%s leads to %q, %v", name, link, err)
			}
		})
	}
	for _, name := range []string{"node_modules/a/index.js", ".cache/x", "compiled/v24", "compiled/v24/0", "empty"} {
		was, err1 := os.Stat(filepath.Join(from, name))
		is, err2 := os.Stat(filepath.Join(to, name))
		must(t, err1, err2)
		if was.Mode() != is.Mode() || was.Mode().IsRegular() && was.Size() != is.Size() {
			t.Errorf("%s is %v, and was %v", name, is.Mode(), was.Mode())
		}
	}
}

func TestAWholeFolderOverTheLimitsIsNotPacked(t *testing.T) {
	t.Parallel()
	from := install(t)
	for _, limits := range []Limits{{Files: 3}, {Bytes: 5}} {
		var over *LimitError
		if err := Pack(t.Context(), &bytes.Buffer{}, from, limits); !errors.As(err, &over) {
			t.Errorf("%+v: %v", limits, err)
		}
	}
	var archive bytes.Buffer
	must(t, Pack(t.Context(), &archive, from, Limits{}))
	var over *LimitError
	if err := Unpack(t.Context(), &archive, workspace(t, nil), Limits{Bytes: 5}); !errors.As(err, &over) {
		t.Errorf("unpacked over the limit: %v", err)
	}
}

// forged is an archive of a whole folder with these entries.
func forged(t testing.TB, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	z := s2.NewWriter(&out)
	w := tar.NewWriter(z)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "dormouse", PAXRecords: map[string]string{recordVersion: wholeVersion, recordEntries: fmt.Sprint(len(entries))}}))
	for _, h := range entries {
		must(t, w.WriteHeader(&h))
	}
	must(t, w.Close(), z.Close())
	return &out
}

func TestNothingIsWrittenThroughALinkOfAWholeFolder(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	link := tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: outside}
	for name, entries := range map[string][]tar.Header{
		"a file behind a link":   {link, {Typeflag: tar.TypeReg, Name: "a/file", Mode: 0o644}},
		"a folder behind a link": {link, {Typeflag: tar.TypeDir, Name: "a/b/", Mode: 0o755}},
		"a link behind a link":   {link, {Typeflag: tar.TypeSymlink, Name: "a/b", Linkname: "x"}},
		"a file instead":         {link, {Typeflag: tar.TypeReg, Name: "a", Mode: 0o644}},
		"a name that leads out":  {{Typeflag: tar.TypeReg, Name: "../file", Mode: 0o644}},
		"a pipe":                 {{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o644}},
		"twice":                  {{Typeflag: tar.TypeReg, Name: "x", Mode: 0o644}, {Typeflag: tar.TypeReg, Name: "x", Mode: 0o644}},
	} {
		t.Run(name, func(t *testing.T) {
			err := Unpack(t.Context(), forged(t, entries...), workspace(t, nil), Limits{})
			if err == nil {
				t.Errorf("%s: it is taken", name)
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Fatalf("%s: outside are %v, %v", name, left, err)
			}
		})
	}
}

// Unpack refuses an archive that was cut. It also refuses changed bytes, unless the
// contents stay the same: the compression has several forms for a repetition.
func TestADamagedWholeFolderIsRefused(t *testing.T) {
	t.Parallel()
	from := workspace(t, files{"a": strings.Repeat("text ", 100), "b/c": "c", "l": "-> a"})
	var archive bytes.Buffer
	must(t, Pack(t.Context(), &archive, from, Limits{}))
	for n := range archive.Len() {
		if err := Unpack(t.Context(), bytes.NewReader(archive.Bytes()[:n]), t.TempDir(), Limits{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the first %d bytes of %d: %v", n, archive.Len(), err)
		}
		changed := bytes.Clone(archive.Bytes())
		changed[n] ^= 1
		to := workspace(t, nil)
		err := Unpack(t.Context(), bytes.NewReader(changed), to, Limits{})
		if err == nil && cmp.Equal(seen(t, from), seen(t, to)) || errors.Is(err, ErrCorrupt) {
			continue
		}
		t.Errorf("byte %d of %d is another: %v", n, archive.Len(), err)
	}
}

func FuzzUnpackWhole(f *testing.F) {
	f.Add(forged(f, tar.Header{Typeflag: tar.TypeReg, Name: "a", Mode: 0o644}, tar.Header{Typeflag: tar.TypeSymlink, Name: "b", Linkname: ".."}).Bytes())
	f.Add(forged(f, tar.Header{Typeflag: tar.TypeReg, Name: "../a", Mode: 0o644}).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := workspace(t, nil)
		_ = Unpack(t.Context(), bytes.NewReader(data), dir, Limits{Bytes: 1 << 16, Files: 50}) // only what it leaves counts
		commontest.SameIn(t, "outside of the folder", files{"workspace": "/"}, outer(t, filepath.Dir(dir)))
	})
}
