package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket/buckettest"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// hosted stores the installs of a box as the host does, without a relay.
type hosted struct {
	bucket *bucket.Bucket
	box    storage.BoxID
}

func (h hosted) fault(err error) error {
	switch {
	case errors.Is(err, storage.NotFound):
		return errors.Join(snapshot.ErrNone, err)
	case errors.Is(err, storage.Fenced):
		return errors.Join(snapshot.ErrStale, err)
	}
	return err
}

func (h hosted) Newest(ctx context.Context, owner string, _ int64) (string, string, time.Time, error) {
	get, sum, saved, err := h.bucket.Newest(ctx, h.box, owner)
	return get, sum, saved, h.fault(err)
}

func (h hosted) Room(ctx context.Context, owner string, gen, size int64, sum string) (snapshot.Room, error) {
	object, put, header, err := h.bucket.Room(ctx, h.box, owner, storage.Generation(gen), size, sum)
	room := snapshot.Room{Object: object, URL: put, Header: http.Header{}}
	for name, value := range header {
		room.Header.Set(name, value)
	}
	return room, h.fault(err)
}

func (h hosted) Commit(ctx context.Context, owner string, gen int64, object string) error {
	return h.fault(h.bucket.Commit(ctx, h.box, owner, storage.Generation(gen), object))
}

func (h hosted) Forget(ctx context.Context, owner string, gen int64) error {
	return h.fault(h.bucket.Forget(ctx, h.box, owner, storage.Generation(gen)))
}

// tampering is the network between a box and S3. If it is on, it changes the last byte of
// everything that a box fetches. It keeps the last archive that a box sent.
type tampering struct {
	on   bool
	sent []byte
}

func (t *tampering) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		t.sent, r.Body = text, io.NopCloser(bytes.NewReader(text))
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !t.on || r.Method != http.MethodGet {
		return answer, err
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close() // all of it is read
	text[len(text)-1]++
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return answer, err
}

// keeping has the boxes of a test keep their installs in S3. Each call stands for another
// runner.
func (i *installs) keeping(s3 *buckettest.S3, box storage.BoxID, gen int64, on *tampering) *keptInstalls {
	b := bucket.New(bucket.Config{
		Location: bucket.Location{Bucket: "kept", Prefix: "snapshots", Region: buckettest.Region, Endpoint: s3.Endpoint()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: buckettest.KeyID, SecretAccessKey: buckettest.Secret, SessionToken: buckettest.Token}, nil
		}),
	})
	return &keptInstalls{
		store: snapshot.NewSigned(snapshot.SignedConfig{Host: hosted{b, box}, Temp: i.at.work, Client: &http.Client{Transport: on}, Pauses: []time.Duration{}}),
		key:   func(name string) string { return "install-" + name }, gen: gen, temp: i.at.work, log: slog.New(slog.DiscardHandler),
	}
}

// wake stages a server in a box that begins with an empty cache, and waits for what it
// uploads. installed reports whether the box has asked the registry for anything.
func (i *installs) wake(k *keptInstalls, text string) (installed bool) {
	i.t.Helper()
	i.forget()
	i.at.installs = k
	before := i.from.asked.Load()
	l, err := i.stage(text)
	commontest.OK(i.t, err)
	for k.busy() { // what uploads ends by itself
		time.Sleep(time.Millisecond)
	}
	if info, err := os.Stat(l.Command); err != nil || info.Mode()&0o111 == 0 {
		i.t.Errorf("%s cannot be executed: %v", l.Command, err)
	}
	return i.from.asked.Load() != before
}

func published(t *testing.T) (*installs, *registry) {
	r := newRegistry(t)
	r.publish("srv", "1.0.0", map[string]any{"bin": "cli.js"}, file("package/cli.js", "#!/usr/bin/env node\n"))
	r.index("py-srv", "py_srv-1.0.0-py3-none-any.whl", wheel(t, "py_srv", "1.0.0", nil, map[string]string{"py_srv-1.0.0.dist-info/entry_points.txt": "[console_scripts]\npy-srv = py_srv:main\n"}))
	return newInstalls(t, r), r
}

func TestABoxUnpacksWhatItInstalledBefore(t *testing.T) {
	for name, server := range map[string]string{
		"npm": `{"command": "npx", "args": ["-y", "srv"], "env": {"API_KEY": "canary-of-the-server"}}`, "pypi": `{"command": "uvx", "args": ["py-srv"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			i, _ := published(t)
			t.Setenv("npm_config__authToken", "canary-of-npm")
			s3, on := buckettest.New(t), &tampering{}
			if !i.wake(i.keeping(s3, "acme/s", 1, on), server) || len(s3.Objects()) != 2 {
				t.Fatalf("the first start installs and keeps: %v", s3.Requests())
			}
			if files := unpackedText(t, on.sent); strings.Contains(files, "canary") || name == "npm" && !strings.Contains(files, "cli.js") {
				t.Errorf("the archive has %s", files)
			}
			commontest.EqualIn(t, "the second start installs", false, i.wake(i.keeping(s3, "acme/s", 2, on), server))
			on.on = true
			commontest.EqualIn(t, "it installs in the place of changed bytes", true, i.wake(i.keeping(s3, "acme/s", 3, on), server))
			on.on = false
			if i.wake(i.keeping(s3, "acme/s", 4, on), server) || len(s3.Objects()) != 2 {
				t.Errorf("after changed bytes nothing is kept: %v", s3.Objects())
			}
			if name == "npm" && (!i.wake(i.keeping(s3, "evil/s", 1, on), server) || len(s3.Objects()) != 4) {
				t.Errorf("another tenant was given the install: %v", s3.Objects())
			}
		})
	}
}

// unpackedText returns the names and texts of the files in an archive.
func unpackedText(t *testing.T, archive []byte) string {
	t.Helper()
	to := t.TempDir()
	commontest.OK(t, snapshot.Unpack(t.Context(), bytes.NewReader(archive), to, installLimits()))
	var all strings.Builder
	commontest.OK(t, filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		all.WriteString(path + "\n" + string(data))
		return err
	}))
	return all.String()
}

func TestWhereInstallsAreKept(t *testing.T) {
	t.Parallel()
	host := keeping{host: &asked{}}
	for _, c := range []struct {
		where      string
		keep       keeping
		local      bool
		fine, kept bool
	}{
		{"", host, false, true, true},
		{"", host, true, true, false}, // the cache of this machine serves every box
		{"", keeping{}, false, true, false},
		{"folder:/x", keeping{}, true, true, true},
		{"folder:x", keeping{}, false, false, false},
		{"on", host, false, false, false},
	} {
		k, err := c.keep.installsOf(c.where, c.local, "b", 1, "/tmp", nil)
		commontest.Equal(t, c.fine, err == nil)
		commontest.Equal(t, c.kept, k != nil)
	}
}

// A runner that is invited again and again must not collect the locks of ended boxes.
func TestABoxThatHasEndedReleasesItsInstalls(t *testing.T) {
	i, _ := published(t)
	log := slog.New(slog.DiscardHandler)
	p := &prepared{box: newBox(parsed(t, `{"command": "npx", "args": ["-y", "srv"]}`), i.setup(), log), work: i.at.work, release: func() error { return nil }, log: log}
	if _, err := p.box.provisioner.Provision(t.Context(), "p", nil, nil); err != nil {
		t.Fatal(err)
	}
	tidied := func() int {
		t.Helper()
		n, err := provision.Tidy(t.Context(), i.at.cache, provision.Keep{Bytes: 1})
		commontest.OK(t, err)
		_ = os.Remove(filepath.Join(i.at.cache, ".tidied")) // or the next Tidy would do nothing
		return n
	}
	if n := tidied(); n != 0 {
		t.Fatalf("while its box runs, Tidy removes the install (%d)", n)
	}
	p.remove()
	commontest.EqualIn(t, "after its box has ended, Tidy", 1, tidied())
}

// Servers that answer each request with an empty list of tools, in each language.
const (
	tinyNode = `#!/usr/bin/env node
require("readline").createInterface({input: process.stdin}).on("line", l => {
  const m = JSON.parse(l)
  if (m.id !== undefined) console.log(JSON.stringify({jsonrpc: "2.0", id: m.id, result: {tools: []}}))
}).on("close", () => process.exit())
`
	tinyPython = `import json, sys
def main():
    for line in sys.stdin:
        m = json.loads(line)
        if "id" in m:
            print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": []}}), flush=True)
`
)

func parsed(t *testing.T, text string) serversfile.Server {
	t.Helper()
	all, _, err := serversfile.Parse([]byte(`{"mcpServers": {"s": `+text+`}}`), "servers.json", nil)
	commontest.OK(t, err)
	s, ok := all.Server("s")
	if !ok {
		t.Fatal("no server")
	}
	return s
}

// An image has what a server needs; a start asks no registry and no bucket.
func TestABakedServerStartsWithoutARegistry(t *testing.T) {
	for name, server := range map[string]string{
		"npm": `{"command": "npx", "args": ["-y", "srv", "--flag"]}`, "pypi": `{"command": "uvx", "args": ["py-srv"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			i, from := published(t)
			from.publish("srv", "1.0.0", map[string]any{"bin": "cli.js"}, file("package/cli.js", tinyNode))
			from.index("py-srv", "py_srv-1.0.0-py3-none-any.whl", wheel(t, "py_srv", "1.0.0", nil, map[string]string{
				"py_srv.py": tinyPython, "py_srv-1.0.0.dist-info/entry_points.txt": "[console_scripts]\npy-srv = py_srv:main\n",
			}))
			python, version := pythonHere(t)
			// Bake installs into the folder that the image will have, so its paths are
			// right in the image.
			i.at.baked = filepath.Join(i.root, "image")
			baking := filepath.Join(i.root, "baking")
			baked, err := Bake(t.Context(), parsed(t, server), BakeConfig{
				Cache: baking, Work: i.at.work, Compile: true, Log: slog.New(slog.DiscardHandler),
				Image: provision.BakeConfig{To: i.at.baked, At: i.at.baked, Python: python, Version: version},
			})
			if err != nil {
				t.Fatalf("%+v, %v", baked, err)
			}
			commontest.OK(t, exec.CommandContext(t.Context(), "rm", "-rf", baking).Run())
			from.http.Close()
			before := from.asked.Load()
			commontest.EqualIn(t, "the image has the install", true, newBox(parsed(t, server), i.setup(), slog.New(slog.DiscardHandler)).provisioner.Baked())
			l, err := i.stage(server)
			if err != nil || !strings.HasPrefix(l.Command, filepath.Join(i.at.baked, baked)) || len(l.Reads) != 1 {
				t.Fatalf("%+v, %v", l, err)
			}
			if made, _ := filepath.Glob(filepath.Join(i.at.cache, "*", "*", "made-*")); from.asked.Load() != before || len(made) > 0 {
				t.Errorf("it installed: %v", made)
			}
			cmd := exec.CommandContext(t.Context(), l.Command, l.Args...)
			cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(l.Path, os.Getenv("PATH")), ":"))
			in, err1 := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			if err1 != nil || err2 != nil || cmd.Start() != nil {
				t.Fatal("it cannot be started", err1, err2)
			}
			_, err = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n")
			commontest.OK(t, errors.Join(err, in.Close())) // the end of its stdin ends it
			if said, err := io.ReadAll(out); err != nil || !strings.Contains(strings.ReplaceAll(string(said), " ", ""), `"tools":[]`) {
				t.Errorf("%s, %v", said, err)
			}
			commontest.OK(t, cmd.Wait())
		})
	}
}

// pythonHere returns the path and the version, such as 3.11, of this machine's Python.
func pythonHere(t *testing.T) (path, version string) {
	t.Helper()
	path, err := exec.LookPath("python3")
	commontest.OK(t, err)
	said, err := exec.CommandContext(t.Context(), path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	commontest.OK(t, err)
	return path, strings.TrimSpace(string(said))
}

// The interpreter of the image would not find its modules.
func TestAPackageForAnotherPythonIsNotBaked(t *testing.T) {
	i, from := published(t)
	from.index("py-srv", "py_srv-1.0.0-py3-none-any.whl", wheel(t, "py_srv", "1.0.0", nil, map[string]string{
		"py_srv.py": tinyPython, "py_srv-1.0.0.dist-info/entry_points.txt": "[console_scripts]\npy-srv = py_srv:main\n",
	}))
	python, version := pythonHere(t)
	to := filepath.Join(i.root, "image")
	_, err := Bake(t.Context(), parsed(t, `{"command": "uvx", "args": ["py-srv"]}`), BakeConfig{
		Cache: i.at.cache, Work: i.at.work, Compile: true, Log: slog.New(slog.DiscardHandler),
		Image: provision.BakeConfig{To: to, At: to, Python: python, Version: "2.7"},
	})
	want := "the image has Python 2.7, and this package was installed for Python " + version + ": bake it where python3 on the PATH is Python 2.7"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is in the image: %v", err)
	}
}

func TestAServerWithoutAPackageCannotBeBaked(t *testing.T) {
	b, err := Bake(t.Context(), parsed(t, `{"command": "node", "args": ["x.js"]}`), BakeConfig{
		Cache: t.TempDir(), Work: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Image: provision.BakeConfig{To: filepath.Join(t.TempDir(), "image"), At: "/x", Python: "/usr/bin/python3"},
	})
	if err == nil {
		t.Errorf("%+v", b)
	}
}

// installed returns the text of a package's file in an install.
func (i *installs) installed(server, file string) string {
	i.t.Helper()
	l, err := i.stage(server)
	commontest.OK(i.t, err)
	found, err := filepath.Glob(filepath.Join(l.Reads[0], file))
	if err != nil || len(found) != 1 {
		i.t.Fatal(found, err)
	}
	text, err := os.ReadFile(found[0])
	commontest.OK(i.t, err)
	return string(text)
}

// elsewhere makes this machine a new one that has only the locks of the old one.
func (i *installs) elsewhere() {
	i.t.Helper()
	other := filepath.Join(i.t.TempDir(), "locks")
	commontest.OK(i.t, os.Rename(filepath.Join(i.at.cache, "locks"), other))
	i.forget()
	i.at.locks = other
}

// forget removes the caches, including those of npm and pip.
func (i *installs) forget() {
	i.t.Helper()
	for _, dir := range []string{i.at.cache, filepath.Join(i.root, "home")} {
		commontest.OK(i.t, os.RemoveAll(dir))
		commontest.OK(i.t, os.MkdirAll(dir, 0o755))
	}
}

func TestLockGivesTheSamePackagesEverywhere(t *testing.T) {
	const node, python = `{"command": "npx", "args": ["-y", "top"]}`, `{"command": "uvx", "args": ["toppy"]}`
	const nodeFile, pythonFile = "node_modules/below/text", "venv/lib/python3*/site-packages/belowpy.py"
	from := newRegistry(t)
	i := newInstalls(t, from)
	publish := func(version string) {
		from.publish("top", version, map[string]any{"bin": "cli.js", "dependencies": map[string]string{"below": "*"}}, file("package/cli.js", "#!/usr/bin/env node\n"))
		from.publish("below", version, map[string]any{}, file("package/text", version))
		from.index("toppy", "toppy-"+version+"-py3-none-any.whl", wheel(t, "toppy", version, []string{"belowpy"}, nil))
		from.index("belowpy", "belowpy-"+version+"-py3-none-any.whl", wheel(t, "belowpy", version, nil, map[string]string{"belowpy.py": version}))
	}
	both := func(want string) {
		t.Helper()
		commontest.EqualIn(t, "npm has installed", want, i.installed(node, nodeFile))
		commontest.EqualIn(t, "pip has installed", want, i.installed(python, pythonFile))
	}
	publish("1.0.0")
	both("1.0.0")
	publish("2.0.0")
	both("1.0.0")
	i.elsewhere()
	both("1.0.0")

	// The registry now has other bytes for the same version, as after an attack.
	i.forget()
	from.publish("below", "1.0.0", map[string]any{}, file("package/text", "other"))
	from.index("belowpy", "belowpy-1.0.0-py3-none-any.whl", wheel(t, "belowpy", "1.0.0", nil, map[string]string{"belowpy.py": "other"}))
	for _, server := range []string{node, python} {
		_, err := i.stage(server)
		if err == nil || !strings.Contains(err.Error(), "the registry gives other bytes than the lock") || !strings.Contains(err.Error(), "remove the lock") {
			t.Errorf("%s: %v", server, err)
		}
	}
	i.at.locks = ""
	both("2.0.0")
}
