package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// environ is the environment of this program, in the form of os.Environ.
type environ []string

func (e environ) get(name string) string { return e.subset(name)[name] }

// subset returns the variables with these names.
func (e environ) subset(names ...string) map[string]string {
	env := map[string]string{}
	for _, kv := range e {
		if name, value, _ := strings.Cut(kv, "="); slices.Contains(names, name) {
			env[name] = value
		}
	}
	return env
}

// lookup returns the value of ${VAR} in the servers file.
func (e environ) lookup(name string) (string, bool) {
	value, ok := e.subset(name)[name]
	return value, ok
}

// boxes returns the variables that runners get from this machine. Runners pass PATH, HOME, TMPDIR,
// LANG, and the variables for proxies and certificates on to servers. Runners write the output of
// servers to the folder logs, and if show is set, they quote that output in errors for clients.
func (e environ) boxes(logs string, show bool) map[string]string {
	env := e.subset("PATH", "HOME", "TMPDIR", "LANG", "DORMOUSE_PROFILE", "PYENV_ROOT")
	if folder := e.get(cacheEnv); folder != "" {
		if path, err := filepath.Abs(folder); err == nil { // a runner has another working directory
			env[cacheEnv] = path
		}
	}
	// With GOMAXPROCS=1, a runner wakes no other thread when it passes a message between
	// goroutines.
	env["GOMAXPROCS"] = "1"
	env["DORMOUSE_LOGS"] = logs
	if show {
		env["DORMOUSE_SHOW_OUTPUT"] = "on"
	}
	for _, kv := range e {
		name, value, _ := strings.Cut(kv, "=")
		upper := strings.ToUpper(name)
		for _, prefix := range []string{"PIP_", "UV_", "NPM_CONFIG_"} {
			if strings.HasPrefix(upper, prefix) {
				env[name] = value
			}
		}
		if provision.IsNetwork(name) {
			env[name] = value
		}
	}
	return env
}

// withHome returns env with a HOME that this user can write to. If HOME in env is not such a
// folder, withHome creates the folder fallback and uses it. npm does not start without a home.
func withHome(env map[string]string, fallback string) (map[string]string, error) {
	if home := env["HOME"]; home != "" && unix.Access(home, unix.W_OK) == nil {
		return env, nil
	}
	env["HOME"] = fallback
	return env, os.MkdirAll(fallback, 0o700)
}

const cacheEnv = "DORMOUSE_CACHE"
