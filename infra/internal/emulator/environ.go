package emulator

import (
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/infra/local"
)

const snapshotsEnv = "DORMOUSE_SNAPSHOTS" // says where boxes keep workspaces; by default that is a folder in the data folder

// variables is an environment in the form of os.Environ.
type variables []string

func (v variables) get(name string) string { return v.subset(name)[name] }

// subset returns the variables with these names.
func (v variables) subset(names ...string) map[string]string {
	env := map[string]string{}
	for _, kv := range v {
		if name, value, _ := strings.Cut(kv, "="); slices.Contains(names, name) {
			env[name] = value
		}
	}
	return env
}

// passedOn returns those variables of Dormouse that function programs get unchanged. If the store
// or the workspaces are on AWS, it adds AWS's credentials and region.
func passedOn(s *local.Site) map[string]string {
	v := variables(s.Environ)
	env := v.subset(wiring.EnvLife, wiring.EnvWaitingCalls, wiring.EnvConnectSecrets, "DORMOUSE_PROFILE")
	if strings.HasPrefix(s.Store, "sqlite:") && !strings.HasPrefix(v.get(snapshotsEnv), "s3:") {
		return env
	}
	maps.Copy(env, v.subset("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"))
	return env
}

// inherited returns an environment without the variables that begin with DORMOUSE_, AWS_ or _.
func inherited(all []string) (env []string) {
	for _, kv := range all {
		if !strings.HasPrefix(kv, "DORMOUSE_") && !strings.HasPrefix(kv, "AWS_") && !strings.HasPrefix(kv, "_") {
			env = append(env, kv)
		}
	}
	return env
}
