package snapshot

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// item is an entry of an archive that a test makes.
type item struct {
	tar.Header
	text string
}

func regular(name, text string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644}, text}
}

func symlink(name, to string) item {
	return item{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}, ""}
}

func directory(name string) item {
	return item{tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}, ""}
}

func removed(name string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Format: tar.FormatPAX, PAXRecords: map[string]string{recordGone: "1"}}, ""}
}

// tarball makes an archive whose header says that it has n entries.
func tarball(t testing.TB, n string, items ...item) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	head := tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{recordVersion: version, recordEntries: n}}
	err := w.WriteHeader(&head)
	for _, i := range items {
		if err == nil {
			err = w.WriteHeader(&i.Header)
		}
		if err == nil {
			_, err = io.WriteString(w, i.text)
		}
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func compress(t testing.TB, raw []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	commontest.OK(t, err)
	return z.EncodeAll(raw, nil)
}

// archive makes a valid, compressed archive of these items.
func archive(t testing.TB, items ...item) []byte {
	return compress(t, tarball(t, strconv.Itoa(len(items)), items...))
}

// unpackInto unpacks into a new workspace. Its parent folder has files that a bad archive
// could harm.
func unpackInto(t *testing.T, data []byte, l Limits) (got files, c changes, err error) {
	t.Helper()
	dir := workspace(t, nil)
	beside := filepath.Join(filepath.Dir(dir), "beside")
	must(t, os.WriteFile(beside, []byte("safe"), 0o600))
	c, err = unpack(t.Context(), bytes.NewReader(data), dir, l.withDefaults())
	commontest.SameIn(t, "outside of the workspace", files{"beside": "safe", "workspace": "/"}, outer(t, filepath.Dir(dir)))
	return seen(t, dir), c, err
}

// outer returns the entries directly in a folder.
func outer(t *testing.T, dir string) files {
	t.Helper()
	f := seen(t, dir)
	for name := range f {
		if strings.Contains(name, "/") {
			delete(f, name)
		}
	}
	return f
}

func TestHostileArchiveIsRefused(t *testing.T) {
	kind := func(flag byte) item {
		return item{tar.Header{Typeflag: flag, Name: "x", Linkname: "../beside", Mode: 0o644}, ""}
	}
	for name, items := range map[string][]item{
		"absolute name":             {regular("/tmp/x", "x")},
		"name that goes up":         {regular("../beside", "x")},
		"name that is not clean":    {regular("a//b", "x")},
		"the workspace itself":      {directory(".")},
		"removal above":             {removed("../beside")},
		"dependencies":              {regular("node_modules/x", "x")},
		"long name":                 {regular(strings.Repeat("x/", maxName)+"x", "x")},
		"link to an absolute path":  {symlink("l", "/etc/passwd")},
		"link up":                   {symlink("l", "../beside")},
		"link up by way of others":  {directory("a"), directory("a/b"), symlink("a/b/c", "../.."), symlink("l", "a/b/c/../beside")},
		"link up by way of later":   {directory("a"), directory("a/b"), symlink("l", "a/b/c/../beside"), symlink("a/b/c", "../..")},
		"hard link":                 {kind(tar.TypeLink)},
		"block device":              {kind(tar.TypeBlock)},
		"pipe":                      {kind(tar.TypeFifo)},
		"removal with contents":     {{tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1, Format: tar.FormatPAX, PAXRecords: map[string]string{recordGone: "1"}}, "x"}, kind(tar.TypeFifo)},
		"another header in between": {regular("a", "a"), {tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{recordVersion: "2"}}, ""}},
		"file behind a link":        {directory("a"), symlink("l", "a"), regular("l/x", "x")},
		"twice":                     {regular("a", "a"), regular("a", "b")},
		"below a file":              {regular("a", "a"), regular("a/b", "b")},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := unpackInto(t, archive(t, items...), Limits{})
			is(t, ErrCorrupt, err)
		})
	}
}

func TestArchiveThatIsNotWholeIsRefused(t *testing.T) {
	whole := archive(t, regular("a", strings.Repeat("abc", 10_000)), regular("b", "b"))
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-1] ^= 1
	for name, data := range map[string][]byte{
		"nothing":             nil,
		"cut in the middle":   whole[:len(whole)/2],
		"with a wrong one":    flipped,
		"empty tar":           compress(t, make([]byte, 1024)),
		"without our header":  compress(t, tarball(t, "1", regular("a", "a"))[1024+512:]),
		"fewer than it says":  compress(t, tarball(t, "2", regular("a", "a"))),
		"more than it says":   compress(t, tarball(t, "1", regular("a", "a"), regular("b", "b"))),
		"something behind it": compress(t, append(tarball(t, "1", regular("a", "a")), "more"...)),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := unpackInto(t, data, Limits{})
			is(t, ErrCorrupt, err)
		})
	}
}

func TestBombIsRefusedBeforeItFillsTheDisk(t *testing.T) {
	many := make([]item, 50)
	for i := range many {
		many[i] = regular(strconv.Itoa(i), "")
	}
	for name, data := range map[string][]byte{
		"large file":        archive(t, regular("a", strings.Repeat("x", 2<<20))),
		"together large":    archive(t, regular("a", strings.Repeat("x", 700<<10)), regular("b", strings.Repeat("x", 700<<10))),
		"many files":        archive(t, many...),
		"more than it says": compress(t, tarball(t, "1", many...)),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := unpackInto(t, data, Limits{Bytes: 1 << 20, Files: 10})
			var limit *LimitError
			if !errors.As(err, &limit) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("endless zeros", func(t *testing.T) {
		padded := append(tarball(t, "1", regular("a", "a")), make([]byte, 8<<20)...)
		_, _, err := unpackInto(t, compress(t, padded), Limits{Bytes: 1 << 10, Files: 1})
		is(t, ErrCorrupt, err)
	})
}

func FuzzUnpack(f *testing.F) {
	whole := tarball(f, "4", removed("gone"), directory("d"), regular("d/a", "a"), symlink("l", "d/a"))
	f.Add(whole)
	f.Add(tarball(f, "1", regular("../x", "x")))
	f.Add(tarball(f, "2", symlink("l", "d"), regular("l/x", "x")))
	f.Add(tarball(f, "3", directory("a"), symlink("a/b", ".."), symlink("l", "a/b/../x")))
	f.Add(tarball(f, "1", item{tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "staged"}, ""}))
	f.Add(compress(f, whole))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, again := workspace(t, nil), workspace(t, nil)
		limits := Limits{Bytes: 1 << 16, Files: 50}
		// The first call skips the checksum, the second does not. The test ignores their
		// errors and checks only the files.
		_ = (&unpacker{found: changes{put: tree{}}}).all(t.Context(), bytes.NewReader(data), dir, limits)
		_, _ = unpack(t.Context(), bytes.NewReader(data), again, limits)
		commontest.SameIn(t, "outside of the workspace", files{"workspace": "/"}, outer(t, filepath.Dir(dir)))
		var size int
		got := seen(t, dir)
		for _, text := range got {
			size += len(text)
		}
		if len(got) > 50*maxName || size > 4<<16 {
			t.Errorf("%d files with %d bytes", len(got), size)
		}
	})
}

func TestAWholeFolderOverTheLimitsIsNotPacked(t *testing.T) {
	from := workspace(t, files{"node_modules/a/index.js": "a", ".cache/x": "kept too", "compiled/v24/0": "code", "empty": "/"})
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
	outside := t.TempDir()
	link := tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: outside}
	for name, entries := range map[string][]tar.Header{
		"a file behind a link":  {link, {Typeflag: tar.TypeReg, Name: "a/file", Mode: 0o644}},
		"a file instead":        {link, {Typeflag: tar.TypeReg, Name: "a", Mode: 0o644}},
		"a name that leads out": {{Typeflag: tar.TypeReg, Name: "../file", Mode: 0o644}},
		"a pipe":                {{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o644}},
		"twice":                 {{Typeflag: tar.TypeReg, Name: "x", Mode: 0o644}, {Typeflag: tar.TypeReg, Name: "x", Mode: 0o644}},
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
	from := workspace(t, files{"a": strings.Repeat("text ", 100), "b/c": "c", "l": "-> a"})
	var archive bytes.Buffer
	must(t, Pack(t.Context(), &archive, from, Limits{}))
	for n := range archive.Len() {
		is(t, ErrCorrupt, Unpack(t.Context(), bytes.NewReader(archive.Bytes()[:n]), t.TempDir(), Limits{}))
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
