package runner

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// registry serves the packages of a test on loopback, in npm's form and as a simple index
// of Python.
type registry struct {
	t    *testing.T
	http *httptest.Server

	asked atomic.Int64 // requests so far

	mu      sync.Mutex
	files   map[string][]byte         // by their paths
	npm     map[string]map[string]any // manifests by name, then by version
	python  map[string][]string       // names of files, by project
	reports []report                  // what code of packages has said
}

// report is one attempt of a package's code, with its outcome.
type report struct {
	Tried int      `json:"tried"`
	Did   []string `json:"did"` // what should have failed
	Env   string   `json:"env"`
	UID   int      `json:"uid"`
}

func newRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{t: t, files: map[string][]byte{}, npm: map[string]map[string]any{}, python: map[string][]string{}}
	r.http = httptest.NewServer(r)
	t.Cleanup(r.http.Close)
	return r
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.asked.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	path := strings.Trim(q.URL.Path, "/")
	project, simple := strings.CutPrefix(path, "simple/")
	switch {
	case path == "report":
		body, _ := io.ReadAll(q.Body)
		var said report
		if err := json.Unmarshal(body, &said); err != nil {
			r.t.Errorf("a report of %q: %v", body, err)
		}
		r.reports = append(r.reports, said)
	case r.files[path] != nil:
		_, _ = w.Write(r.files[path])
	case simple && r.python[project] != nil:
		w.Header().Set("Content-Type", "text/html")
		for _, file := range r.python[project] {
			sum := sha256.Sum256(r.files["files/"+file])
			_, _ = fmt.Fprintf(w, "<a href=\"/files/%s#sha256=%x\">%s</a>\n", file, sum, file)
		}
	case r.npm[path] != nil:
		latest := slices.Max(slices.Collect(maps.Keys(r.npm[path])))
		_ = json.NewEncoder(w).Encode(map[string]any{"name": path, "dist-tags": map[string]string{"latest": latest}, "versions": r.npm[path]})
	default:
		http.NotFound(w, q)
	}
}

// said returns the reports so far and forgets them.
func (r *registry) said() []report {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := r.reports
	r.reports = nil
	return said
}

// publish adds a version of an npm package with a tarball. A second one of the same
// version changes its bytes.
func (r *registry) publish(name, version string, manifest map[string]any, entries ...tar.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	manifest["name"], manifest["version"] = name, version
	text, err := json.Marshal(manifest)
	commontest.OK(r.t, err)
	data := tarball(r.t, append([]tar.Header{file("package/package.json", string(text))}, entries...)...)
	path := fmt.Sprintf("%s/-/%s-%s.tgz", name, filepath.Base(name), version)
	sum := sha512.Sum512(data)
	listed := maps.Clone(manifest)
	listed["dist"] = map[string]string{
		"tarball": r.http.URL + "/" + path, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
	}
	if r.npm[name] == nil {
		r.npm[name] = map[string]any{}
	}
	r.files[path], r.npm[name][version] = data, listed
}

// index adds a file to the index of Python.
func (r *registry) index(project, name string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files["files/"+name] = data
	if !slices.Contains(r.python[project], name) {
		r.python[project] = append(r.python[project], name)
	}
}

// file returns an entry of a tarball. The text is in a record of its header.
func file(name, text string) tar.Header {
	return tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(text)), PAXRecords: map[string]string{"test.text": text}}
}

func tarball(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, h := range entries {
		text := h.PAXRecords["test.text"]
		h.PAXRecords, h.Format = nil, tar.FormatPAX
		commontest.OK(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, text)
		commontest.OK(t, err)
	}
	commontest.OK(t, w.Close())
	commontest.OK(t, packed.Close())
	return out.Bytes()
}

// wheel makes a wheel with a program and further members.
func wheel(t *testing.T, project, version string, requires []string, more map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	info := project + "-" + version + ".dist-info/"
	meta := "Metadata-Version: 2.1\nName: " + project + "\nVersion: " + version + "\n"
	for _, r := range requires {
		meta += "Requires-Dist: " + r + "\n"
	}
	members := map[string]string{
		project + ".py": "def main():\n    print('" + version + "')\n", info + "METADATA": meta, info + "RECORD": "",
		info + "WHEEL":            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "entry_points.txt": "[console_scripts]\n" + project + " = " + project + ":main\n",
	}
	maps.Copy(members, more)
	record := ""
	for name := range members {
		record += name + ",,\n"
	}
	members[info+"RECORD"] = record
	for _, name := range slices.Sorted(maps.Keys(members)) {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.SetMode(0o755)
		f, err := w.CreateHeader(h)
		commontest.OK(t, err)
		_, err = io.WriteString(f, members[name])
		commontest.OK(t, err)
	}
	commontest.OK(t, w.Close())
	return out.Bytes()
}

// installs is a machine that installs packages from the registry of a test.
type installs struct {
	t    *testing.T
	from *registry
	root string // open to all
	on   sandbox.Support
	at   setup
}

// fetchedUv returns the uv of this machine, or the one that a start fetches from the package
// index of this machine.
var fetchedUv = sync.OnceValues(func() ([]byte, error) {
	if uv, err := exec.LookPath("uv"); err == nil {
		return os.ReadFile(uv)
	}
	environ := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		environ[name] = value
	}
	own, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(own, "dormouse-test")
	host, err := os.MkdirTemp("", "host-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(host) }()
	if err := os.WriteFile(filepath.Join(host, "requirements.txt"), nil, 0o600); err != nil {
		return nil, err
	}
	s := provision.New(provision.Config{Base: filepath.Join(host, "base"), Cache: cache, Environ: environ}, provision.Server{Command: "python3", HostPath: host})
	defer s.Close()
	if _, err := s.Provision(context.Background(), "p", nil, nil); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(cache, "uv", "*", "made-*", "bin", "uv"))
	if err != nil || len(found) == 0 {
		return nil, errors.Join(errors.New("no uv was fetched"), err)
	}
	return os.ReadFile(found[len(found)-1])
})

func newInstalls(t *testing.T, from *registry) *installs {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{filepath.Dir(root), root} {
		commontest.OK(t, os.Chmod(dir, 0o755))
	}
	i := &installs{t: t, from: from, root: root, on: sandbox.Probe()}
	i.at = setup{work: filepath.Join(root, "work"), cache: filepath.Join(root, "cache"), on: i.on}
	uv, err := fetchedUv()
	commontest.OK(t, err)
	for _, dir := range []string{i.at.work, i.at.cache, filepath.Join(root, "home"), filepath.Join(root, "bin")} {
		commontest.OK(t, os.MkdirAll(dir, 0o755))
	}
	// Confined programs have another user, which reads nothing in the home folder.
	commontest.OK(t, os.WriteFile(filepath.Join(root, "bin", "uv"), uv, 0o755))
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if upper := strings.ToUpper(name); strings.HasPrefix(upper, "PIP_") || strings.HasPrefix(upper, "NPM_CONFIG_") || strings.HasPrefix(upper, "UV_") {
			t.Setenv(name, "") // has the test put it back
			_ = os.Unsetenv(name)
		}
	}
	for name, value := range map[string]string{
		"PATH": filepath.Join(root, "bin") + ":/usr/bin:/bin:/usr/local/bin", "HOME": filepath.Join(root, "home"), "TMPDIR": root,
		"npm_config_registry": from.http.URL, "npm_config_fetch_retries": "0", "UV_DEFAULT_INDEX": from.http.URL + "/simple",
	} {
		t.Setenv(name, value)
	}
	return i
}

// setup returns the setup of the next box, with the variables that this program has by now.
func (i *installs) setup() setup {
	at := i.at
	at.own = ownEnvironment()
	return at
}

// stage installs what a servers file needs.
func (i *installs) stage(text string) (provision.Launch, error) {
	i.t.Helper()
	return provisionerFor(parsed(i.t, text), i.setup(), slog.New(slog.DiscardHandler)).Provision(i.t.Context(), "p", nil, nil)
}
