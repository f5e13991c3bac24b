package local

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

// environ is the environment of this program, in the form of os.Environ. It selects the
// variables that other programs get.
type environ []string

func (e environ) get(name string) string { return e.only(name)[name] }

// only returns those of the named variables that are set.
func (e environ) only(names ...string) map[string]string {
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
	value, ok := e.only(name)[name]
	return value, ok
}

// boxes returns the variables that runners get from this machine. They say where programs
// and the user's files are, how to reach others and package registries, and what the
// runner's settings are. Of these, servers get PATH, HOME, TMPDIR and LANG, and the proxies
// and certificates. Runners keep the
// output of servers in the folder logs. If show is set, they show that output to clients
// in errors.
func (e environ) boxes(logs string, show bool) map[string]string {
	env := e.only("PATH", "HOME", "TMPDIR", "LANG", "DORMOUSE_PROFILE", "PYENV_ROOT")
	for _, name := range []string{locksEnv, "DORMOUSE_CACHE"} {
		if folder := e.get(name); folder != "" {
			if path, err := filepath.Abs(folder); err == nil { // a runner starts in another folder
				env[name] = path
			}
		}
	}
	// The runner hands each message from goroutine to goroutine. With one processor of the
	// Go runtime it wakes no other thread for that. See proc.Start for the start of processes.
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

// withHome returns env with a home in which this user can write. If HOME is no such
// folder, withHome makes the folder own and uses it. A service of systemd and a user of a
// container often have no home. npm does not start without one, and keeps its cache
// there.
func withHome(env map[string]string, own string) (map[string]string, error) {
	if home := env["HOME"]; home != "" && unix.Access(home, unix.W_OK) == nil {
		return env, nil
	}
	env["HOME"] = own
	return env, os.MkdirAll(own, 0o700)
}

// locksEnv is the variable with a folder of locks from another machine. They fix the
// packages of installations. Runners read it.
const locksEnv = "DORMOUSE_LOCKS"

// checkLocks returns an error if the folder of locks does not exist.
func (e environ) checkLocks() error {
	folder := e.get(locksEnv)
	if folder == "" {
		return nil
	}
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is %q, which is no folder: name one with locks of installs, or unset it", locksEnv, folder)
	}
	return nil
}

const snapshotsEnv = "DORMOUSE_SNAPSHOTS"

// snapshots returns the location where boxes keep workspaces: the value of the variable, or
// folder if it is not set.
func (e environ) snapshots(folder string) string {
	return cmp.Or(e.get(snapshotsEnv), "folder:"+folder)
}

// bucket returns the region and the credentials for a bucket of workspaces.
func (e environ) bucket() bucket.Config {
	keys := dynamostore.Keys{ID: e.get("AWS_ACCESS_KEY_ID"), Secret: e.get("AWS_SECRET_ACCESS_KEY"), Token: e.get("AWS_SESSION_TOKEN")}
	return bucket.Config{Location: bucket.Location{Region: cmp.Or(e.get("AWS_REGION"), e.get("AWS_DEFAULT_REGION"))}, Credentials: keys}
}

// These variables have the settings for tokens that are not in the servers file. The
// functions read the same variables.
const (
	clientSecretEnv        = "DORMOUSE_CLIENT_SECRET"        //nolint:gosec // the name of a variable
	introspectionSecretEnv = "DORMOUSE_INTROSPECTION_SECRET" //nolint:gosec // the name of a variable
)
