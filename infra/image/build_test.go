package main

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// rig is a registry in memory that has a base and an image with tools, each for two
// platforms, and a runner.
type rig struct {
	t            *testing.T
	host, runner string
}

func newRig(t *testing.T, wrap func(http.Handler) http.Handler) *rig {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir()) // nobody's credentials
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	r := &rig{t: t, host: strings.TrimPrefix(server.URL, "http://"), runner: filepath.Join(t.TempDir(), "runner")}
	if err := os.WriteFile(r.runner, []byte("the runner"), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// publish pushes an index with an image for each of two platforms.
func (r *rig) publish(repository string, files map[string]string, config v1.Config) {
	r.t.Helper()
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"amd64", "arm64"} {
		contents := map[string]string{"arch": arch}
		for k, v := range files {
			contents[k] = v + " for " + arch
		}
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: arch, Config: config})
		if err == nil {
			img, err = mutate.AppendLayers(img, r.layer(contents))
		}
		if err != nil {
			r.t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	ref, err := name.ParseReference(r.host + "/" + repository)
	if err == nil {
		err = remote.WriteIndex(ref, index)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) layer(files map[string]string) v1.Layer {
	r.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for path, text := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Size: int64(len(text)), Mode: 0o644}); err != nil {
			r.t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		r.t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		r.t.Fatal(err)
	}
	return layer
}

func (r *rig) publishAll() {
	r.publish("base:1", map[string]string{"usr/bin/node": "node"}, v1.Config{
		Env: []string{"PATH=/usr/local/bin:/usr/bin", "LANG=C"}, Entrypoint: []string{"docker-entrypoint.sh"}, Cmd: []string{"node"}, User: "node",
	})
	r.publish("uv:1", map[string]string{"uv": "uv", "uvx": "uvx"}, v1.Config{})
}

// args are those of make image, with changes.
func (r *rig) args(tag string, more ...string) []string {
	return append([]string{
		"-to", r.host + "/box:" + tag, "-base", r.host + "/base:1",
		r.runner + "=" + entrypoint, r.host + "/uv:1:/uv=/usr/local/bin/uv", r.host + "/uv:1:/uvx=/usr/local/bin/uvx",
	}, more...)
}

func (r *rig) pull(reference string) v1.Image {
	r.t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := remote.Image(ref)
	if err != nil {
		r.t.Fatal(err)
	}
	return img
}

func contents(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	all := map[string]string{}
	whole := mutate.Extract(img)
	defer func() { _ = whole.Close() }()
	for r := tar.NewReader(whole); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[head.Name] = fs.FileMode(head.Mode).String() + " " + string(text) //nolint:gosec // a mode
	}
}

func TestTheImageHasTheBaseTheRunnerAndTheTools(t *testing.T) {
	r := newRig(t, nil)
	r.publishAll()
	made, err := run(t.Context(), r.args("1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	img := r.pull(made)
	if d := cmp.Diff(map[string]string{
		"arch": "-rw-r--r-- arm64", "usr/bin/node": "-rw-r--r-- node for arm64",
		"usr/local/bin/dormouse-runner": "-rwxr-xr-x the runner",
		"usr/local/bin/uv":              "-rwxr-xr-x uv for arm64", "usr/local/bin/uvx": "-rwxr-xr-x uvx for arm64",
	}, contents(t, img)); d != "" {
		t.Error(d)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(v1.Config{
		Env: []string{"PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8", "UV_PYTHON_DOWNLOADS=never"}, Entrypoint: []string{entrypoint},
		WorkingDir: "/", User: "0",
	}, config.Config); d != "" {
		t.Error(d)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 2 {
		t.Errorf("%d layers, %v; want the base's and ours", len(layers), err)
	}
}

func TestThePlatformChoosesWhatIsTaken(t *testing.T) {
	r := newRig(t, nil)
	r.publishAll()
	made, err := run(t.Context(), append([]string{"-platform", "linux/amd64"}, r.args("1")...), nil)
	if err != nil {
		t.Fatal(err)
	}
	all := contents(t, r.pull(made))
	if all["arch"] != "-rw-r--r-- amd64" || all["usr/local/bin/uv"] != "-rwxr-xr-x uv for amd64" {
		t.Errorf("%v", all)
	}
}

func TestTheTagAndTheDigestAreTheSameImage(t *testing.T) {
	r := newRig(t, nil)
	r.publishAll()
	made, err := run(t.Context(), r.args("1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := r.pull(r.host + "/box:1").Digest()
	if err != nil || made != r.host+"/box@"+digest.String() {
		t.Errorf("made %s, tagged %s, %v", made, digest, err)
	}
}

func TestTheSameFilesGiveTheSameDigest(t *testing.T) {
	r := newRig(t, nil)
	r.publishAll()
	first, err := run(t.Context(), r.args("1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	args := r.args("2")
	slices.Reverse(args[4:]) // the files in another order
	second, err := run(t.Context(), args, nil)
	if err != nil || second != first {
		t.Errorf("%s, then %s, %v", first, second, err)
	}
	if err := os.WriteFile(r.runner, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if third, err := run(t.Context(), args, nil); err != nil || third == first {
		t.Errorf("another runner gives %s, %v", third, err)
	}
}

func TestThePasswordComesFromStdin(t *testing.T) {
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("AWS:secret"))
	// A registry that anybody may read, and whose repository of boxes is closed.
	r := newRig(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			closed := q.URL.Path == "/v2/" || strings.HasPrefix(q.URL.Path, "/v2/box/")
			if closed && q.Header.Get("Authorization") != want {
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, q)
		})
	})
	r.publishAll()
	authorised := append([]string{"-user", "AWS"}, r.args("1")...)
	if _, err := run(t.Context(), r.args("1"), nil); err == nil {
		t.Error("pushed without a password")
	}
	if _, err := run(t.Context(), authorised, strings.NewReader("wrong")); err == nil {
		t.Error("pushed with a wrong password")
	}
	if _, err := run(t.Context(), authorised, strings.NewReader("secret\n")); err != nil {
		t.Error(err)
	}
}

func TestWhatCannotBeMadeIsRefused(t *testing.T) {
	r := newRig(t, nil)
	r.publishAll()
	for name, args := range map[string][]string{
		"no target":        {r.runner + "=" + entrypoint},
		"no files":         {"-to", r.host + "/box:1"},
		"no runner":        {"-to", r.host + "/box:1", "-base", r.host + "/base:1", r.runner + "=/bin/other"},
		"no destination":   r.args("1", r.runner),
		"not absolute":     r.args("1", r.runner+"=bin/x"),
		"outside":          r.args("1", r.runner+"=/../x"),
		"no such file":     r.args("1", r.runner+"-missing=/bin/x"),
		"none in an image": r.args("1", r.host+"/uv:1:/missing=/bin/x"),
		"no such image":    r.args("1", r.host+"/missing:1:/uv=/bin/x"),
		"no such platform": append([]string{"-platform", "linux/riscv64"}, r.args("1")...),
		"no platform":      append([]string{"-platform", "arm64"}, r.args("1")...),
		"bad flag":         {"-unknown"},
	} {
		if made, err := run(t.Context(), args, nil); err == nil {
			t.Errorf("%s: made %s", name, made)
		}
	}
}

// Whoever has Docker gets the same box.
func TestTheDockerfileSaysTheSame(t *testing.T) {
	raw, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(raw), "\n")
	for _, want := range []string{
		"ARG BASE=" + defaultBase, "ENV " + strings.Join(environment(), " "), `ENTRYPOINT ["` + entrypoint + `"]`, "CMD []", "WORKDIR /", "USER 0",
		"COPY --from=build /runner " + entrypoint, "COPY --from=uv /uv /uvx /usr/local/bin/",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q", want)
		}
	}
}
