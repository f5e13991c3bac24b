package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

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
