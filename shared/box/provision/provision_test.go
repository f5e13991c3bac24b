package provision

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// runnerRole is an environment variable. If it is set, the test binary stands for another runner;
// the value is the folder of its rig.
const runnerRole = "STAGE_TEST_RUNNER"

func TestMain(m *testing.M) {
	sandbox.Enter(os.Args)
	if folder := os.Getenv(runnerRole); folder != "" && os.Getenv("STAGE_TEST_CLAIM") != "" {
		os.Exit(claimOnce(folder))
	} else if folder != "" {
		os.Exit(stageOnce(folder))
	}
	os.Exit(m.Run())
}

// rig is a temporary folder with all folders and programs of a Provisioner.
type rig struct {
	t    *testing.T
	root string
	said []Progress
}

// newRig returns a rig. Tests with one run in parallel: most of their time they wait for programs.
func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return &rig{t: t, root: t.TempDir()}
}

// config returns the configuration of a rig in a folder. PATH has the programs of the rig
// first.
func config(root string) Config {
	bin := filepath.Join(root, "bin")
	return Config{
		Base: filepath.Join(root, "base"), Cache: filepath.Join(root, "cache"),
		Environ: map[string]string{
			"PATH": bin + ":/usr/bin:/bin", "HOME": filepath.Join(root, "home"), "TMPDIR": root,
			"PIP_LOG_OF_TEST": filepath.Join(root, "log"), "SECRET": "hunter2",
		},
		Confine: func(Workshop) (Sandbox, error) { return anywhere{}, nil },
	}
}

// anywhere is a Sandbox that confines nothing: the tests with a rig execute only code of
// their own.
type anywhere struct{}

func (anywhere) Start(cmd *exec.Cmd) error      { return cmd.Start() }
func (anywhere) Environment() map[string]string { return nil }
func (anywhere) End() error                     { return nil }

func (r *rig) stager(s Server) *Provisioner { return New(config(r.root), s) }

// stage prepares the process "p" of a server.
func (r *rig) stage(s Server) Launch {
	r.t.Helper()
	l, err := r.try(s)
	commontest.OK(r.t, err)
	return l
}

func (r *rig) try(s Server) (Launch, error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	return r.stager(s).Provision(ctx, "p", func(p Progress) { r.said = append(r.said, p) }, nil)
}

func (r *rig) stageWith(s *Provisioner) Launch {
	r.t.Helper()
	l, err := s.Provision(r.t.Context(), "p", nil, nil)
	commontest.OK(r.t, err)
	return l
}

// failure stages a server and returns the error, which must not be nil.
func (r *rig) failure(s Server) *Error {
	r.t.Helper()
	_, err := r.try(s)
	return errorOf(r.t, err)
}

// fails stages a server and checks a part of its error.
func (r *rig) fails(s Server, phase Phase, says string) {
	r.t.Helper()
	_, err := r.try(s)
	wantError(r.t, err, phase, says)
}

// wantError checks a phase, of which "" may be any, and a part of an error.
func wantError(t *testing.T, err error, phase Phase, says string) {
	t.Helper()
	if got := errorOf(t, err).Phase; phase != "" && got != phase || !strings.Contains(err.Error(), says) {
		t.Errorf("got phase %s: %v, want %s: %s", got, err, phase, says)
	}
}

func errorOf(t *testing.T, err error) *Error {
	t.Helper()
	var known *Error
	if !errors.As(err, &known) {
		t.Fatalf("got %v, want an Error", err)
	}
	return known
}

// write makes files below the root: a name that ends in "/" is a folder, a text
// that begins with "-> " a link.
func (r *rig) write(files map[string]string) {
	r.t.Helper()
	for name, text := range files {
		file := filepath.Join(r.root, name)
		var err error
		switch link, isLink := strings.CutPrefix(text, "-> "); {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(file, 0o755)
		case isLink:
			err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Symlink(link, file))
		default:
			err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
		}
		commontest.OK(r.t, err)
	}
}

func (r *rig) program(name, script string) {
	r.t.Helper()
	r.write(map[string]string{"bin/" + name: "#!/bin/sh\n" + script})
	commontest.OK(r.t, os.Chmod(filepath.Join(r.root, "bin", name), 0o755))
}

func (r *rig) log() []string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.root, "log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// count returns how often the scripts have noted a line that begins with start.
func (r *rig) count(start string) int {
	n := 0
	for _, line := range r.log() {
		if strings.HasPrefix(line, start) {
			n++
		}
	}
	return n
}

// noted checks how often the scripts have noted a line that begins with start.
func (r *rig) noted(want int, start string) {
	r.t.Helper()
	if n := r.count(start); n != want {
		r.t.Errorf("%q was noted %d times, want %d: %q", start, n, want, r.log())
	}
}

// installing returns the pid that the install notes. It waits for it.
func (r *rig) installing() (pid int) {
	r.t.Helper()
	commontest.Eventually(r.t, "the install runs", func() bool {
		data, err := os.ReadFile(filepath.Join(r.root, "log.pid"))
		if err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		}
		return pid > 0
	})
	return pid
}

func (r *rig) host() string { return filepath.Join(r.root, "host") }

func list(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == folder {
			return err
		}
		rel, _ := filepath.Rel(folder, name)
		switch d.Type() {
		case fs.ModeDir:
			all[rel+"/"] = ""
		case fs.ModeSymlink:
			link, err := os.Readlink(name)
			all[rel] = "-> " + link
			return err
		default:
			data, err := os.ReadFile(name)
			all[rel] = string(data)
			return err
		}
		return nil
	})
	commontest.OK(t, err)
	return all
}

func TestProcessesHaveWorkspacesOfTheirOwn(t *testing.T) {
	r := newRig(t)
	s := r.stager(Server{Command: "a", Workspace: true})
	seen := map[string]string{} // the process of a workspace
	for _, process := range []string{"a", "../a", "a/b", "/", "", strings.Repeat("x", 5000)} {
		l, err := s.Provision(t.Context(), process, nil, nil)
		commontest.OK(t, err)
		if _, taken := seen[l.Workspace]; taken || !strings.HasPrefix(l.Workspace, filepath.Join(r.root, "base", ".mcp")+"/") {
			t.Errorf("process %.20q has workspace %s", process, l.Workspace)
		}
		seen[l.Workspace] = process
	}
	commontest.OK(t, s.Remove("a"))
	for workspace, process := range seen {
		if there(workspace) == (process == "a") {
			t.Errorf("with that of a, the workspace of %.20q is there: %t", process, process == "a")
		}
	}
}

func TestWritableHostPathIsTheWorkspaceAsItIs(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/requirements.txt": "a\n", "host/.venv/bin/python": "", "host/package.json": "{}", "host/package-lock.json": "{}"})
	before := list(t, r.host())
	l := r.stage(Server{Command: r.host() + "/.venv/bin/python", Args: []string{r.host() + "/s.py"}, HostPath: r.host(), Writable: true})
	if l.Workspace != r.host() || l.Cwd != r.host() || l.Command != r.host()+"/.venv/bin/python" || l.Args[0] != r.host()+"/s.py" {
		t.Errorf("got %+v", l)
	}
	commontest.EqualIn(t, "something was done", len(before), len(list(t, r.host())))
	commontest.EqualIn(t, "something was done", 0, len(r.said))
}

func TestAServerGetsTheNetworkOfTheMachineUnlessItsEntrySaysOtherwise(t *testing.T) {
	machine := map[string]string{
		"HTTP_PROXY": "http://p", "https_proxy": "http://p", "NO_PROXY": "x", "SSL_CERT_FILE": "/ca", "NODE_EXTRA_CA_CERTS": "/ca", "GIT_SSL_CAINFO": "/ca", "NODE_USE_ENV_PROXY": "1",
		"DORMOUSE_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "GITHUB_TOKEN": "g", "SSL_CERT": "x", "PROXY": "x", "PATH": "/bin",
	}
	all := map[string]string{
		"HTTP_PROXY": "http://p", "https_proxy": "http://p", "NO_PROXY": "x", "SSL_CERT_FILE": "/ca", "NODE_EXTRA_CA_CERTS": "/ca", "GIT_SSL_CAINFO": "/ca", "NODE_USE_ENV_PROXY": "1",
	}
	commontest.Same(t, all, Network(machine, nil, nil))
	entry := map[string]string{"http_proxy": "http://q", "HTTPS_PROXY": "http://q", "SSL_CERT_FILE": "/own"}
	left := map[string]string{"GIT_SSL_CAINFO": "/ca", "NODE_USE_ENV_PROXY": "1"}
	commontest.SameIn(t, "the entry wins, whatever the case", left, Network(machine, entry, []string{"no_proxy", "NODE_EXTRA_CA_CERTS"}))
}
