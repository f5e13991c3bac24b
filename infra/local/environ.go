package local

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/bucket"
	"github.com/dormouse-mcp/dormouse/shared/dynamostore"
)

// environ is the environment of this program, as os.Environ gives it, and what of it others
// get to know.
type environ []string

func (e environ) get(name string) string { return e.only(name)[name] }

// only has the variables of these names that are set.
func (e environ) only(names ...string) map[string]string {
	env := map[string]string{}
	for _, kv := range e {
		name, value, _ := strings.Cut(kv, "=")
		for _, n := range names {
			if n == name {
				env[name] = value
			}
		}
	}
	return env
}

// lookup finds what ${VAR} in the servers file means.
func (e environ) lookup(name string) (string, bool) {
	value, ok := e.only(name)[name]
	return value, ok
}

// passedOn are the variables that function programs get as they are: settings of sessions
// and boxes, which they read themselves, and the credentials of a store or a bucket on AWS.
// They get no credentials for places of this machine.
func (e environ) passedOn(store, snapshots string) map[string]string {
	env := e.only("DORMOUSE_SESSION_LIFE", "DORMOUSE_INIT_TIMEOUT", "DORMOUSE_EVENT_AGE", "DORMOUSE_HOLD", "DORMOUSE_TENANT_BOXES", "DORMOUSE_WAITING_CALLS", "DORMOUSE_PROFILE", issuerEnv, introspectionSecretEnv)
	if strings.HasPrefix(store, sqlite) && !strings.HasPrefix(snapshots, "s3:") {
		return env
	}
	maps.Copy(env, e.only("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"))
	return env
}

// inherited is the environment without what is Dormouse's own.
func (e environ) inherited() []string {
	var env []string
	for _, kv := range e {
		if !strings.HasPrefix(kv, "DORMOUSE_") && !strings.HasPrefix(kv, "AWS_") && !strings.HasPrefix(kv, "_") {
			env = append(env, kv)
		}
	}
	return env
}

// boxes is what runners are told by this machine: where programs and the user's things are,
// settings of the runner, and how to reach package registries. Servers get none of it but
// PATH, HOME, TMPDIR and LANG. What servers print is kept in the folder logs, and errors show
// it to clients if show is set.
func (e environ) boxes(logs string, show bool) map[string]string {
	env := e.only("PATH", "HOME", "TMPDIR", "LANG", "DORMOUSE_CACHE", "DORMOUSE_CACHE_AGE", "DORMOUSE_CACHE_MB", "DORMOUSE_BOX_PROCESSES", "DORMOUSE_PROFILE",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PYENV_ROOT")
	if folder := e.get(locksEnv); folder != "" {
		if path, err := filepath.Abs(folder); err == nil { // a runner starts in another folder
			env[locksEnv] = path
		}
	}
	// One more than the runner needs while a process starts, which blocks a processor.
	env["GOMAXPROCS"] = "2"
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
		switch upper {
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY":
			env[name] = value
		}
	}
	return env
}

// locksEnv names a folder of locks, made on another machine, that say what packages
// installs come to. Runners read it.
const locksEnv = "DORMOUSE_LOCKS"

// checkLocks refuses a folder of locks that is not there.
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

// boxesOff says whether DORMOUSE_BOXES is anything but "on", or nothing: what cannot be
// understood starts no servers.
func (e environ) boxesOff(log *slog.Logger) bool {
	switch e.get("DORMOUSE_BOXES") {
	case "", "on":
		return false
	default:
		log.Warn("boxes are switched off by DORMOUSE_BOXES: no stdio server is started")
		return true
	}
}

const snapshotsEnv = "DORMOUSE_SNAPSHOTS"

// snapshots is where workspaces are kept: in the folder, if nothing else is said.
func (e environ) snapshots(folder string) string {
	return cmp.Or(e.get(snapshotsEnv), "folder:"+folder)
}

// bucket is what a bucket for workspaces needs besides its name.
func (e environ) bucket() bucket.Config {
	keys := dynamostore.Keys{ID: e.get("AWS_ACCESS_KEY_ID"), Secret: e.get("AWS_SECRET_ACCESS_KEY"), Token: e.get("AWS_SESSION_TOKEN")}
	return bucket.Config{Place: bucket.Place{Region: cmp.Or(e.get("AWS_REGION"), e.get("AWS_DEFAULT_REGION"))}, Credentials: keys}
}
