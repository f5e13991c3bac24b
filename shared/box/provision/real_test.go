package provision

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The tests here use npm, node and python3 of this machine and small packages of
// the public registries.

// fetchedUv fetches uv once for all tests and returns its folder. It returns "" if this machine
// has uv, or if uv cannot be fetched.
var fetchedUv = sync.OnceValue(func() string {
	if _, err := exec.LookPath("uv"); err == nil {
		return ""
	}
	own, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	s := &provisioning{Provisioner: New(Config{Cache: filepath.Join(own, "dormouse-test"), Environ: ofThisMachine()}, Server{}), tell: func(Progress) {}}
	defer s.Close()
	python, err := s.interpreter("")
	if err != nil {
		return ""
	}
	uv, _, _ := s.uv(context.Background(), python) // the test says what it lacks
	return filepath.Dir(uv)
})

func ofThisMachine() map[string]string {
	environ := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		environ[name] = value
	}
	return environ
}

// real is a config with the programs and settings of this machine.
func real(root string) Config {
	environ := ofThisMachine()
	if folder := fetchedUv(); folder != "" {
		environ["PATH"] += ":" + folder
	}
	return Config{Base: filepath.Join(root, "base"), Cache: filepath.Join(root, "cache"), Environ: environ, Confine: inSandbox}
}

// inSandbox makes the sandbox that a runner makes for a user whose interpreters are in the
// home folder.
func inSandbox(w Workshop) (Sandbox, error) {
	p := sandbox.Policy{Sockets: sandbox.InternetSockets, KeepUser: true, Workspace: w.Folder, Temp: filepath.Join(w.Folder, ".tmp"), Read: w.Read}
	for _, program := range w.Programs {
		p.Read = append(p.Read, filepath.Dir(filepath.Dir(program)))
	}
	return sandbox.New(p, sandbox.Probe())
}

// execute runs a staged command as a box would, and returns its stdout.
func execute(t *testing.T, l Launch) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// env looks for the command in the PATH that it is given.
	cmd := exec.CommandContext(ctx, "env", append([]string{l.Command}, l.Args...)...)
	cmd.Dir = l.Cwd
	cmd.Env = []string{"PATH=" + strings.Join(append(l.Path, os.Getenv("PATH")), ":"), "HOME=" + t.TempDir()}
	for name, value := range l.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", l.Command, err, &stderr)
	}
	return string(out)
}

func stageReal(t *testing.T, s *Provisioner) Launch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l, err := s.Provision(ctx, "p", nil, nil)
	commontest.OK(t, err)
	return l
}

func TestRealPackagesRunAlsoWithoutNetwork(t *testing.T) {
	for command, c := range map[string]struct {
		args []string
		said string
	}{
		"npx": {[]string{"-y", "semver@7", "1.2.3", "-i", "minor"}, "1.3.0\n"},
		"uvx": {[]string{"pycowsay", "hello"}, "hello"},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			cfg := real(t.TempDir())
			for range 2 {
				commontest.Contains(t, "said", c.said, execute(t, stageReal(t, New(cfg, Server{Command: command, Args: c.args}))))
				for _, registry := range []string{"npm_config_registry", "PIP_INDEX_URL", "UV_DEFAULT_INDEX"} {
					cfg.Environ[registry] = "http://127.0.0.1:1" // nobody answers there
				}
			}
		})
	}
}

// On a machine without uv, pip fetches the release of uv whose hashes the package has.
func TestRealUvIsFetchedOnce(t *testing.T) {
	t.Parallel()
	cfg := real(t.TempDir())
	cfg.Environ["PATH"] = "/usr/bin:/bin"
	s := &provisioning{Provisioner: New(cfg, Server{}), tell: func(Progress) {}}
	python, err := s.interpreter("")
	commontest.OK(t, err)
	for range 2 {
		uv, _, err := s.uv(t.Context(), python)
		commontest.OK(t, err)
		if said, err := exec.CommandContext(t.Context(), uv, "--version").Output(); err != nil || string(said) != "uv "+uvVersion+"\n" || !strings.HasPrefix(uv, cfg.Cache) {
			t.Errorf("%s says %q, %v", uv, said, err)
		}
		cfg.Environ["PIP_INDEX_URL"], cfg.Environ["PIP_EXTRA_INDEX_URL"] = "http://127.0.0.1:1", "http://127.0.0.1:2 http://127.0.0.1:3"
		cfg.Environ["PIP_FIND_LINKS"], cfg.Environ["UV_INSECURE_HOST"], cfg.Environ["PIP_TRUSTED_HOST"] = "/a /b", "of uv", "of pip"
	}
	got := s.pipSettings(t.Context(), python)
	for _, want := range []string{"UV_DEFAULT_INDEX=http://127.0.0.1:1", "UV_INDEX=http://127.0.0.1:2 http://127.0.0.1:3", "UV_FIND_LINKS=/a,/b"} {
		if !slices.Contains(got, want) {
			t.Errorf("the settings %q lack %s", got, want)
		}
	}
	if strings.Contains(strings.Join(got, " "), "of pip") {
		t.Errorf("a setting of pip takes the place of uv's: %q", got)
	}
}

// The images have the release of uv that other machines fetch.
func TestUvIsThatOfTheImages(t *testing.T) {
	for _, name := range []string{"Dockerfile", "machine.py", "push.sh"} {
		text, err := os.ReadFile(filepath.Join("../../../infra/image", name))
		commontest.OK(t, err)
		commontest.Contains(t, "", "/uv:"+uvVersion, string(text))
	}
}

// Until 0.1.0-alpha.2 pip made locks, with the hash of one file for each package. They
// still decide what is installed, and other bytes are refused.
func TestRealLocksOfEarlierReleasesHold(t *testing.T) {
	const hash = "5c03d8a9c7666ec102aaed4bbd6c7d35228489ce236f95f6e5d079529c6a5050"
	for text, want := range map[string]string{
		"# pycowsay\npycowsay==0.0.0.2 --hash=sha256:" + hash + "\n":                    "",
		"# pycowsay\npycowsay==0.0.0.2 --hash=sha256:" + strings.Repeat("0", 64) + "\n": "the registry gives other bytes than the lock",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			cfg := real(t.TempDir())
			s := &provisioning{Provisioner: New(cfg, Server{Command: "uvx", Args: []string{"pycowsay"}})}
			r, _ := parseTool("uvx", []string{"pycowsay"})
			h, _ := s.pypi(r)
			name, err := h.lock(t.Context())
			locks := filepath.Join(cfg.Cache, "locks")
			if err = errors.Join(err, os.MkdirAll(locks, 0o755), os.WriteFile(filepath.Join(locks, name), []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
			l, err := s.Provision(t.Context(), "p", nil, nil)
			if want == "" && (err != nil || l.Command == "uvx") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %+v, %v", text, l, err)
			}
		})
	}
}

func TestRealPythonFolderRunsInItsVirtualEnvironment(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{
		"host/requirements.txt": "iniconfig==2.0.0\n",
		"host/server.py":        "import iniconfig, sys, os\nprint(iniconfig.__name__, sys.prefix == os.environ['VIRTUAL_ENV'], os.getcwd())\n",
	})
	cfg := real(r.root)
	s := New(cfg, Server{Command: r.host() + "/.venv/bin/python", Args: []string{r.host() + "/server.py"}, HostPath: r.host()})
	l := stageReal(t, s)
	commontest.EqualIn(t, "said", "iniconfig True "+l.Workspace+"\n", execute(t, l))
}
