package main

import (
	"archive/tar"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/keeper/box"
	"github.com/dormouse-mcp/dormouse/infra/keeper/gate"
	"github.com/dormouse-mcp/dormouse/infra/keeper/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func store(t *testing.T) image.Store {
	return image.Store{Dir: t.TempDir(), Limits: image.Limits{Bytes: 64 << 20, Entries: 1000}, Nameserver: gate.Nameserver}
}

// A program in the box sees the files of all layers, as newer layers have replaced and removed
// those of older ones.
func TestTheFilesOfAnImageAreThoseOfItsLayers(t *testing.T) {
	owned := entry("d/owned", tar.TypeReg, 0o4755, "setuid")
	owned.Uid, owned.Gid, owned.ModTime = 7, 8, time.Unix(1234567890, 0)
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}},
		withServer(t),
		layer(t, entry("d", tar.TypeDir, 0o750), entry("d/gone", tar.TypeReg, 0o644, "x"), entry("d/kept", tar.TypeReg, 0o600, "kept"), owned,
			entry("d/first", tar.TypeReg, 0o640, "linked"), entry("d/second", tar.TypeLink, 0o640, "d/first"), entry("d/third", tar.TypeLink, 0o640, "/d/first"),
			entry("opaque", tar.TypeDir, 0o755), entry("opaque/old", tar.TypeReg, 0o644, "x"), entry("file", tar.TypeDir, 0o755), entry("file/below", tar.TypeReg, 0o644, "x"), entry("folder", tar.TypeReg, 0o644, "x")),
		layer(t, entry("d/.wh.gone", tar.TypeReg, 0o644), entry("d/.wh.first", tar.TypeReg, 0o644), entry("opaque/new", tar.TypeReg, 0o644, "new"), entry("opaque/.wh..wh..opq", tar.TypeReg, 0o644),
			entry("file", tar.TypeReg, 0o644, "now a file"), entry("folder", tar.TypeDir, 0o755), entry("folder/below", tar.TypeReg, 0o644, "now below"), entry("d", tar.TypeDir, 0o711)),
		layer(t, entry("d/passwd", tar.TypeSymlink, 0o777, "/etc/passwd"), entry("d/up", tar.TypeSymlink, 0o777, "../../../etc/group"), entry("etc/hosts", tar.TypeReg, 0o644, "theirs"), entry("etc/resolv.conf", tar.TypeLink, 0o644, "etc/hosts"), entry("d/hosts", tar.TypeLink, 0o644, "etc/hosts"),
			entry(box.InitPath, tar.TypeReg, 0o644, "theirs"), entry(".init", tar.TypeReg, 0o644, "init"), entry("dev/console", tar.TypeChar, 0o600)),
	)
	r := keep(t, as{1000, ""}, "", "run", "--store", as{1000, ""}.folder(t), ref, "tree:/d", "tree:/opaque", "tree:/file", "tree:/folder", "read:/d/passwd", "read:/d/up", "read:/etc/resolv.conf", "read:/.init", "map:/d/kept")
	want := map[string]string{
		"tree:/d": "/d drwx--x--x 0:0 0 ; /d/hosts -rw-r--r-- 0:0 0 theirs; /d/kept -rw------- 0:0 0 kept; /d/owned urwxr-xr-x 7:8 1234567890 setuid; /d/passwd Lrwxrwxrwx 0:0 0 /etc/passwd; " +
			"/d/second -rw-r----- 0:0 0 linked; /d/third -rw-r----- 0:0 0 linked; /d/up Lrwxrwxrwx 0:0 0 ../../../etc/group",
		"tree:/opaque": "/opaque drwxr-xr-x 0:0 0 ; /opaque/new -rw-r--r-- 0:0 0 new", "tree:/file": "/file -rw-r--r-- 0:0 0 now a file",
		"tree:/folder": "/folder drwxr-xr-x 0:0 0 ; /folder/below -rw-r--r-- 0:0 0 now below", "read:/etc/resolv.conf": "nameserver " + gate.Nameserver, "read:/.init": "init", "map:/d/kept": "kept",
	}
	r.said(t, want)
	has(t, "output", "read:/d/passwd root:x:0:0", r.out)
	r.ended(t, 0)
}

func TestAHostileImageIsRefused(t *testing.T) {
	var many []tar.Header
	for n := range 1001 {
		many = append(many, entry(fmt.Sprint("f", n), tar.TypeReg, 0o644))
	}
	for name, test := range map[string]struct {
		entries []tar.Header
		named   string
	}{
		"a way out":        {[]tar.Header{entry("../x", tar.TypeReg, 0o644, "x")}, "../x"},
		"a link out":       {[]tar.Header{entry("x", tar.TypeLink, 0o644, "../../etc/passwd")}, "etc/passwd"},
		"a link nowhere":   {[]tar.Header{entry("x", tar.TypeLink, 0o644, "nowhere")}, "nowhere"},
		"a device":         {[]tar.Header{entry("disk", tar.TypeBlock, 0o644)}, "/disk"},
		"a pipe":           {[]tar.Header{entry("pipe", tar.TypeFifo, 0o644)}, "/pipe"},
		"too many entries": {many, "1000"},
		"no /tmp":          {[]tar.Header{entry("tmp", tar.TypeReg, 0o644)}, "/tmp"},
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t)
			ref := push(t, served(t), v1.Config{}, layer(t, test.entries...))
			if i, err := s.Pull(t.Context(), ref, false); err == nil || !strings.Contains(err.Error(), test.named) {
				t.Errorf("%+v, %v", i, err)
			}
			left, err := filepath.Glob(filepath.Join(s.Dir, "*"))
			if err != nil || slices.ContainsFunc(left, func(f string) bool { return !strings.HasPrefix(filepath.Base(f), "lock-") }) {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
	t.Run("too large", func(t *testing.T) {
		s := store(t)
		zeros := entry("zeros", tar.TypeReg, 0o644, strings.Repeat("\x00", 65<<20))
		if i, err := s.Pull(t.Context(), push(t, served(t), v1.Config{}, layer(t, zeros)), false); err == nil || !strings.Contains(err.Error(), "64 MB") {
			t.Errorf("%+v, %v", i, err)
		}
	})
}

// between starts a proxy for a registry, which passes each answer through change.
func between(t *testing.T, host string, change func(path string, body []byte) []byte) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := http.Get("http://" + host + r.URL.Path) //nolint:noctx // of a test
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = resp.Body.Close() }() // the file was only read
		body, err := io.ReadAll(resp.Body)
		check(t, err)
		for _, name := range []string{"Content-Type", "Docker-Content-Digest"} {
			w.Header().Set(name, resp.Header.Get(name))
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = w.Write(change(r.URL.Path, body)) // the client may have seen enough
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestWhatARegistryChangesIsRefused(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}}, layer(t, entry("a", tar.TypeReg, 0o644, strings.Repeat("text ", 2000))))
	good := store(t)
	i, err := good.Pull(t.Context(), ref, false)
	must(t, err)
	must(t, i.File.Close())
	blobs := map[string]bool{}
	for name, change := range map[string]func([]byte) []byte{
		"another byte": func(b []byte) []byte { c := slices.Clone(b); c[len(c)/2] ^= 1; return c },
		"cut":          func(b []byte) []byte { return b[:len(b)-1] },
		"longer":       func(b []byte) []byte { return append(slices.Clone(b), 'x') },
	} {
		for target := range 2 { // the configuration, and the layer
			t.Run(fmt.Sprint(name, " ", target), func(t *testing.T) {
				seen := 0
				s := store(t)
				front := between(t, host, func(path string, body []byte) []byte {
					if !strings.Contains(path, "/blobs/") {
						return body
					}
					blobs[path] = true
					if seen++; seen-1 != target {
						return body
					}
					return change(body)
				})
				if i, err := s.Pull(t.Context(), strings.Replace(ref, host, front, 1), false); err == nil {
					t.Errorf("%+v", i)
				}
				if left, _ := filepath.Glob(filepath.Join(s.Dir, "sha256-*")); left != nil {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
	equal(t, "blobs", 2, len(blobs))
}

// An image whose file somebody has changed is refused once, and the next start pulls it again.
func TestAnImageThatWasChangedOnDiskIsRefused(t *testing.T) {
	ref := push(t, served(t), v1.Config{}, layer(t, entry("a", tar.TypeReg, 0o644, "text")))
	s := store(t)
	for range 2 {
		i, err := s.Pull(t.Context(), ref, false)
		must(t, err)
		name := i.File.Name()
		must(t, i.File.Close())
		info, err := os.Stat(name)
		must(t, err)
		text, err := os.ReadFile(name)
		must(t, err)
		text[len(text)/2] ^= 1
		must(t, os.Chmod(name, 0o600))
		must(t, os.WriteFile(name, text, 0o600))
		must(t, os.Chtimes(name, info.ModTime(), info.ModTime()))
		if i, err := s.Pull(t.Context(), ref, false); err == nil || !strings.Contains(err.Error(), "changed") {
			t.Errorf("%+v, %v", i, err)
		}
	}
}

func TestAnImageIsMadeOnce(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{}, layer(t, entry("a", tar.TypeReg, 0o644, "text")))
	var asked atomic.Int32
	front := between(t, host, func(path string, body []byte) []byte {
		if strings.Contains(path, "/blobs/") {
			asked.Add(1)
		}
		return body
	})
	s, name := store(t), strings.Replace(ref, host, front, 1)
	pull := func() {
		i, err := s.Pull(t.Context(), name, false)
		if err != nil {
			t.Error(err)
			return
		}
		check(t, i.File.Close())
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(pull)
	}
	all.Wait()
	pull()
	equal(t, "blobs that were fetched", 2, asked.Load())
}

func TestAPullThatWasKilledIsBegunAgain(t *testing.T) {
	host := served(t)
	ref := push(t, host, v1.Config{Entrypoint: []string{"/server"}}, withServer(t))
	a := as{1000, ""}
	dir := a.folder(t)
	reached, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	front := between(t, host, func(path string, body []byte) []byte {
		if strings.Contains(path, "/blobs/") && len(body) > 1<<16 {
			first := false
			once.Do(func() { first = true })
			if first {
				close(reached)
				<-hold
				return body[:len(body)/2]
			}
		}
		return body
	})
	name := strings.Replace(ref, host, front, 1)
	cmd := a.command(keeperRole, "run", "--store", dir, name, "id")
	must(t, cmd.Start())
	<-reached
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // its error is that it was killed
	close(hold)
	if left, _ := filepath.Glob(filepath.Join(dir, "sha256-*")); left != nil {
		t.Errorf("left: %v", left)
	}
	if r := keep(t, a, "", "run", "--store", dir, name, "id"); r.says("id") != "0 0 []" || r.code != 0 {
		t.Errorf("%+v", r)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp-*")); left != nil {
		t.Errorf("left: %v", left)
	}
}
