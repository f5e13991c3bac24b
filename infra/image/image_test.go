//go:build image

// Package image_test runs push.sh against an in-memory registry.
package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/internal/cranetest"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// rig is a registry. Its repository box requires a login. It has two images, each for two
// platforms: a base image, and one with the tools uv and uvx.
type rig struct {
	t                     *testing.T
	crane, folder, runner string
	host                  string
}

// newRig returns a rig. It needs crane, which make test-image installs.
func newRig(t *testing.T) *rig {
	t.Helper()
	folder := t.TempDir()
	t.Setenv("DOCKER_CONFIG", filepath.Join(folder, "nobody"))
	r := &rig{t: t, folder: folder, crane: os.Getenv("DORMOUSE_TEST_CRANE"), runner: filepath.Join(folder, "runner")}
	if r.crane == "" {
		t.Fatal("DORMOUSE_TEST_CRANE names no program: run make test-image")
	}
	r.write("runner", "the runner")
	backend := &url.URL{Scheme: "http", Host: cranetest.Registry(t, r.crane)}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("AWS:secret"))
	proxy := &httputil.ReverseProxy{Rewrite: func(q *httputil.ProxyRequest) { q.SetURL(backend); q.Out.Host = q.In.Host }}
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/v2/box/") && q.Header.Get("Authorization") != want {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, q)
	}))
	t.Cleanup(door.Close)
	r.host = strings.TrimPrefix(door.URL, "http://")
	r.publish("base:1", []string{"--env", "PATH=/usr/bin", "--env", "LANG=C", "--entrypoint", "start.sh", "--cmd", "node", "--user", "node"}, "usr/bin/node")
	r.publish("uv:1", nil, "uv", "uvx")
	return r
}

func (r *rig) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.folder, name)
	commontest.OK(r.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// do runs crane and returns what it printed.
func (r *rig) do(args ...string) []byte {
	r.t.Helper()
	out, err := exec.CommandContext(r.t.Context(), r.crane, args...).Output()
	if err != nil {
		r.t.Fatalf("crane %v: %v", args, err)
	}
	return out
}

// publish pushes an index with an image for each platform. Each file contains its name and
// the platform.
func (r *rig) publish(reference string, config []string, files ...string) {
	r.t.Helper()
	index := []string{"index", "append", "--tag", r.host + "/" + reference}
	for _, arch := range []string{"amd64", "arm64"} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range files {
			text := name + " for " + arch
			commontest.OK(r.t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644}))
			_, err := io.WriteString(w, text)
			commontest.OK(r.t, err)
		}
		commontest.OK(r.t, w.Close())
		tag := r.host + "/" + reference + "-" + arch
		r.do("append", "--new_layer", r.write("layer.tar", b.String()), "--new_tag", tag)
		r.do(append([]string{"mutate", "--set-platform", "linux/" + arch, "--tag", tag, tag}, config...)...)
		index = append(index, "--manifest", tag)
	}
	r.do(index...)
}

// push runs push.sh and returns the reference that it printed.
func (r *rig) push(tag, platform, password string) (string, error) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "./push.sh", r.crane, r.runner, platform, r.host+"/box:"+tag)
	cmd.Env = append(cmd.Environ(), "BASE="+r.host+"/base:1", "UV="+r.host+"/uv:1")
	cmd.Stdin = strings.NewReader(password)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// login gives the test itself access to the repository of the boxes.
func (r *rig) login() {
	r.t.Helper()
	r.do("auth", "login", r.host, "--username", "AWS", "--password", "secret")
}

func (r *rig) contents(reference string) map[string]string {
	r.t.Helper()
	all := map[string]string{}
	for archive := tar.NewReader(bytes.NewReader(r.do("export", reference, "-"))); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		commontest.OK(r.t, err)
		text, err := io.ReadAll(archive)
		commontest.OK(r.t, err)
		all[head.Name] = head.FileInfo().Mode().String() + " " + string(text)
	}
}

func TestTheImageHasTheBaseTheRunnerAndTheToolsOfItsPlatform(t *testing.T) {
	r := newRig(t)
	locks := filepath.Join(r.folder, "locks")
	commontest.OK(t, os.Mkdir(locks, 0o700))
	for _, name := range []string{"npm-top-1", "npm-top-1.lock", "npm-top-1.output"} {
		r.write(filepath.Join("locks", name), "what top comes to")
	}
	t.Setenv("LOCKS", locks)
	for _, arch := range []string{"amd64", "arm64"} {
		made, err := r.push(arch, "linux/"+arch, "secret\n")
		commontest.OK(t, err)
		r.login()
		if digest := strings.TrimSpace(string(r.do("digest", r.host+"/box:"+arch))); made != r.host+"/box@"+digest {
			t.Errorf("it printed %s, and the tag is %s", made, digest)
		}
		commontest.Same(t, map[string]string{
			"usr/bin/node": "-rw-r--r-- usr/bin/node for " + arch,
			"usr/local/share/dormouse/locks/npm-top-1": "-rw-r--r-- what top comes to",
			"usr/local/bin/dormouse-runner":            "-rwxr-xr-x the runner",
			"usr/local/bin/uv":                         "-rwxr-xr-x uv for " + arch, "usr/local/bin/uvx": "-rwxr-xr-x uvx for " + arch,
		}, r.contents(made))
		var image struct {
			Architecture string
			Config       struct {
				Env, Entrypoint, Cmd []string
				WorkingDir, User     string
			}
		}
		commontest.OK(t, json.Unmarshal(r.do("config", made), &image))
		c := image.Config
		got := []string{image.Architecture, strings.Join(c.Env, " "), strings.Join(c.Entrypoint, " "), strings.Join(c.Cmd, " "), c.WorkingDir, c.User}
		want := []string{arch, "PATH=/usr/bin LANG=C.UTF-8 UV_PYTHON_DOWNLOADS=never DORMOUSE_LOCKS=/usr/local/share/dormouse/locks DORMOUSE_BAKED=/usr/local/share/dormouse/installs", "/usr/local/bin/dormouse-runner", "", "/", "0"}
		commontest.Same(t, want, got)
	}
}

// npm is a registry of npm with one package, which has a server.
func npm(t *testing.T) *httptest.Server {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{
		"package/package.json": `{"name":"srv","version":"1.0.0","bin":"cli.js"}`,
		"package/cli.js": `#!/usr/bin/env node
require("readline").createInterface({input: process.stdin}).on("line", l => {
  const m = JSON.parse(l)
  if (m.id !== undefined) console.log(JSON.stringify({jsonrpc: "2.0", id: m.id, result: {tools: []}}))
}).on("close", () => process.exit())`,
	} {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o755})
		if _, err2 := io.WriteString(w, text); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
	}
	commontest.OK(t, errors.Join(w.Close(), z.Close()))
	sum := sha512.Sum512(packed.Bytes())
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/srv" {
			_, _ = w.Write(packed.Bytes())
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": "srv", "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{
			"1.0.0": map[string]any{"name": "srv", "version": "1.0.0", "bin": "cli.js", "dist": map[string]string{
				"tarball": s.URL + "/srv.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			}},
		}})
	}))
	t.Cleanup(s.Close)
	return s
}

// The servers of the servers file are in the image, by the digests of their
// requests. A box of the image starts such a server with an empty cache and no network.
func TestTheImageHasTheServersOfTheServersFile(t *testing.T) {
	r, packages := newRig(t), npm(t)
	servers := r.write("servers.json", `{"mcpServers": {"s": {"command": "npx", "args": ["-y", "srv"]}, "own": {"command": "node", "args": ["x.js"]}}}`)
	out := filepath.Join(r.folder, "bin", "baked")
	for name, value := range map[string]string{"npm_config_registry": packages.URL, "npm_config_fetch_retries": "0", "HOME": r.folder} {
		t.Setenv(name, value)
	}
	program, err := filepath.Abs("../../bin/dormouse")
	commontest.OK(t, err)
	bake := exec.CommandContext(t.Context(), program, "image", "--json", "--servers", servers)
	bake.Dir = r.folder
	said, err := bake.Output()
	commontest.OK(t, err)
	var rows []struct {
		Server, Digest, Why string
	}
	if err := json.Unmarshal(said, &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%s, %v", said, err)
	}
	for _, row := range rows {
		if fine := row.Digest != "" && row.Why == ""; fine != (row.Server == "s") || !fine && row.Why == "" {
			t.Errorf("%+v", row)
		}
	}
	packages.Close()
	t.Setenv("BAKED", out)
	made, err := r.push("baked", "linux/amd64", "secret")
	commontest.OK(t, err)
	r.login()
	box := t.TempDir()
	tarball := r.write("image.tar", string(r.do("export", made, "-")))
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", tarball, "-C", box).CombinedOutput(); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	l, err := provision.New(provision.Config{
		Base: filepath.Join(box, "work"), Cache: filepath.Join(box, "cache"), Baked: filepath.Join(box, "usr/local/share/dormouse/installs"),
		Environ: map[string]string{"PATH": os.Getenv("PATH"), "npm_config_registry": packages.URL},
	}, provision.Server{Command: "npx", Args: []string{"-y", "srv"}}).Provision(t.Context(), "p", nil, nil)
	if err != nil || !strings.HasPrefix(l.Command, filepath.Join(box, "usr/local/share/dormouse/installs")) {
		t.Fatalf("%+v, %v", l, err)
	}
	cmd := exec.CommandContext(t.Context(), l.Command, l.Args...)
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}` + "\n")
	if answer, err := cmd.Output(); err != nil || !strings.Contains(string(answer), `"id":1`) {
		t.Errorf("the server says %q, %v", answer, err)
	}
}

func TestTheSameFilesGiveTheSameDigestAndWhatCannotBeMadeIsRefused(t *testing.T) {
	r := newRig(t)
	var made []string
	for _, runner := range []string{"one", "one", "another"} {
		r.write("runner", runner)
		reference, err := r.push("1", "linux/arm64", "secret")
		commontest.OK(t, err)
		made = append(made, reference)
	}
	if made[0] != made[1] || made[2] == made[0] {
		t.Errorf("two images of the same files and one of another: %q", made)
	}
	for what, c := range map[string][2]string{ // platform, password
		"without a password":                         {"linux/arm64", ""},
		"with a wrong one":                           {"linux/arm64", "wrong"},
		"for a platform that the base does not have": {"linux/riscv64", "secret"},
	} {
		if made, err := r.push("2", c[0], c[1]); err == nil || made != "" {
			t.Errorf("%s it pushed %q", what, made)
		}
	}
	commontest.OK(t, os.Remove(r.runner))
	if made, err := r.push("2", "linux/arm64", "secret"); err == nil {
		t.Errorf("without a runner it pushed %q", made)
	}
}

// The Dockerfile is for users with Docker. It must build the same box.
func TestTheDockerfileSaysTheSame(t *testing.T) {
	raw, err := os.ReadFile("Dockerfile")
	commontest.OK(t, err)
	script, err := os.ReadFile("push.sh")
	commontest.OK(t, err)
	lines := strings.Split(string(raw), "\n")
	for line, said := range map[string]string{
		"ARG BASE=docker.io/library/node:24-bookworm": "${BASE:-docker.io/library/node:24-bookworm}",
		"ARG UV=ghcr.io/astral-sh/uv:0.9.11":          "${UV:-ghcr.io/astral-sh/uv:0.9.11}",
		"ENV LANG=C.UTF-8 UV_PYTHON_DOWNLOADS=never DORMOUSE_LOCKS=/usr/local/share/dormouse/locks DORMOUSE_BAKED=/usr/local/share/dormouse/installs": "--env LANG=C.UTF-8 --env UV_PYTHON_DOWNLOADS=never --env DORMOUSE_LOCKS=/usr/local/share/dormouse/locks --env DORMOUSE_BAKED=/usr/local/share/dormouse/installs ",
		`ENTRYPOINT ["/usr/local/bin/dormouse-runner"]`: "--entrypoint /usr/local/bin/dormouse-runner",
		"CMD []":    "",
		"WORKDIR /": "--workdir / ",
		"USER 0":    "--user 0 ",
		"COPY --from=build /runner /usr/local/bin/dormouse-runner": `add("dormouse-runner"`,
		"COPY --from=uv /uv /uvx /usr/local/bin/":                  `"uv", "uvx"`,
	} {
		t.Run(line, func(t *testing.T) {
			if !slices.Contains(lines, line) || !strings.Contains(string(script), said) {
				t.Errorf("the Dockerfile has no line %q, or push.sh does not say %q", line, said)
			}
		})
	}
}
