//go:build image

package image_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// machine runs machine.py with a program for each platform, and returns the reference that
// it printed.
func (r *rig) machine(base, tag string, programs ...string) (string, error) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "./machine.py", append([]string{r.crane, tag}, programs...)...)
	cmd.Env = append(cmd.Environ(), "BASE="+r.host+"/"+base, "UV="+r.host+"/uv:1")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

func TestTheImageOfOneMachineRunsDormouseForAUserWithoutAHome(t *testing.T) {
	r := newRig(t)
	r.write("amd64-keeper", "keeper for amd64")
	r.write("arm64-keeper", "keeper for arm64")
	made, err := r.machine("base:1", r.host+"/machine:1", "linux/amd64="+r.write("amd64", "dormouse for amd64"), "linux/arm64="+r.write("arm64", "dormouse for arm64"))
	commontest.OK(t, err)
	if digest := strings.TrimSpace(string(r.do("digest", r.host+"/machine:1"))); made != r.host+"/machine@"+digest {
		t.Errorf("it printed %s, and the tag is %s", made, digest)
	}
	r.do("validate", "--remote", made)
	for _, arch := range []string{"amd64", "arm64"} {
		reference := r.host + "/machine@" + strings.TrimSpace(string(r.do("digest", "--platform", "linux/"+arch, made)))
		commontest.Same(t, map[string]string{
			"usr/bin/node": "-rw-r--r-- usr/bin/node for " + arch,
			"config":       "drwxr-xr-x ", "data": "drwx------ ",
			"usr/local/bin/dormouse": "-rwxr-xr-x dormouse for " + arch, "usr/local/bin/dormouse-keeper": "-rwxr-xr-x keeper for " + arch,
			"usr/local/bin/uv": "-rwxr-xr-x uv for " + arch, "usr/local/bin/uvx": "-rwxr-xr-x uvx for " + arch,
		}, r.contents(reference))
		var image struct {
			Architecture string
			Config       struct {
				User, WorkingDir     string
				Env, Entrypoint, Cmd []string
				Volumes              map[string]struct{}
				ExposedPorts         map[string]struct{}
				Healthcheck          struct{ Test []string }
			}
		}
		commontest.OK(t, json.Unmarshal(r.do("config", reference), &image))
		c, none := image.Config, struct{}{}
		got := []any{image.Architecture, c.User, c.WorkingDir, strings.Join(c.Env, " "), strings.Join(c.Entrypoint, " "), strings.Join(c.Cmd, " "), c.Volumes, c.ExposedPorts}
		want := []any{
			arch, "10001:10001", "/config", "PATH=/usr/bin HOME=/data/home LANG=C.UTF-8 DORMOUSE_DATA=/data", "/usr/local/bin/dormouse", "run --listen 0.0.0.0:8787",
			map[string]struct{}{"/config": none, "/data": none},
			map[string]struct{}{"8787/tcp": none, "8788/tcp": none},
		}
		commontest.Same(t, want, got)
		if test := strings.Join(c.Healthcheck.Test, " "); !strings.HasPrefix(test, "CMD-SHELL curl ") || !strings.Contains(test, "/healthz") {
			t.Errorf("the health check is %q", test)
		}
	}
}

// The image and the archives contain the program of make build, which needs no other
// file.
func TestTheProgramWorksAloneInAnEmptyFolder(t *testing.T) {
	if version := worksAlone(t, "../../bin/dormouse"); !strings.HasPrefix(version, "dormouse ") {
		t.Errorf("dormouse version: %q", version)
	}
}
