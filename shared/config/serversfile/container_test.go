package serversfile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheCommandLineOfDockerIsRead(t *testing.T) {
	for name, test := range map[string]struct {
		server Server
		want   Container
	}{
		"as manuals have it": {
			Server{Command: "docker", Args: []string{"run", "-i", "--rm", "-e", "TOKEN", "-e", "NOT_SET", "ghcr.io/acme/server", "stdio", "-i"}, Env: map[string]string{"TOKEN": "t", "HOME": "/x"}},
			Container{Image: "ghcr.io/acme/server", Args: []string{"stdio", "-i"}, Env: map[string]string{"TOKEN": "t"}},
		},
		"all options": {
			Server{Command: "/usr/bin/podman", Args: []string{"run", "--interactive=true", "--init", "--name", "x", "--pull=always", "-l", "a=b", "--platform", "linux/arm64", "-w", "/app", "--user=1000:1000", "--entrypoint", "node", "-eA=1=2", "--env=B=", "--", "img", "a.js"}},
			Container{Image: "img", User: "1000:1000", Entrypoint: "node", Args: []string{"a.js"}, Cwd: "/app", Always: true, Platform: "linux/arm64", Env: map[string]string{"A": "1=2", "B": ""}},
		},
		"a copy of the image": {
			Server{Command: "docker", Args: []string{"run", "mcp/time"}, Box: Box{Image: "1.dkr.ecr.eu-west-1.amazonaws.com/time"}},
			Container{Image: "1.dkr.ecr.eu-west-1.amazonaws.com/time", Args: []string{}, Env: map[string]string{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok, err := test.server.Container()
			if d := cmp.Diff(test.want, got); d != "" || !ok || err != nil {
				t.Errorf("%s: %v, %v %s", name, ok, err, d)
			}
		})
	}
	for _, s := range []Server{{Command: "npx", Args: []string{"run", "x"}}, {Command: "docker", Args: []string{"mcp", "gateway", "run"}}, {Command: "docker"}} {
		if c, ok, err := s.Container(); ok || err != nil {
			t.Errorf("%+v is %+v, %v", s, c, err)
		}
	}
}

// What the keeper can do for docker, and a box on AWS cannot.
func TestTheKeeperFollowsMoreOfDocker(t *testing.T) {
	for args, want := range map[string]Container{
		"-i --rm -v /a:/b --volume=/c:/d:ro -v /e:/f:rw img":  {Folders: []string{"/a:/b", "/c:/d:ro", "/e:/f"}},
		"--mount type=bind,src=/a,dst=/b,readonly img":        {Folders: []string{"/a:/b:ro"}},
		"--network none --read-only --tmpfs /run:size=8m img": {Offline: true, ReadOnly: true, Tmpfs: []string{"/run"}},
		"--net=bridge -m 1.5g --cpus=1.5 --pids-limit 64 img": {MemoryMB: 1536, CPUs: 2, Pids: 64},
		"--memory 512m --env-file /x/.env img":                {MemoryMB: 512, EnvFiles: []string{"/x/.env"}},
	} {
		t.Run(args, func(t *testing.T) {
			s := Server{Command: "docker", Args: append([]string{"run"}, strings.Fields(args)...)}
			want.Image, want.Args, want.Env = "img", []string{}, map[string]string{}
			got, ok, err := s.Sealable()
			if d := cmp.Diff(want, got); d != "" || !ok || err != nil {
				t.Errorf("%v, %v %s", ok, err, d)
			}
			if c, ok, err := s.Container(); !ok || err == nil || !strings.Contains(err.Error(), "AWS") {
				t.Errorf("on AWS: %+v, %v, %v", c, ok, err)
			}
		})
	}
	for args, named := range map[string]string{
		"-i --privileged img": "--privileged", "-it img": "-it: a server has no terminal", "-p 1:1 img": "-p", "--rm=false img": "--rm=false", "-i -e": "-e", "-i --rm": "image", "--cap-add ALL img": "--cap-add",
		"-v": "-v", "-v data:/y img": "-v", "-v /x img": "-v", "-v /x:/y:cached img": "-v", "--network host img": "--network", "--mount type=volume,src=/a,dst=/b img": "--mount",
		"--mount src=/a:/c,type=bind,dst=/b img": "--mount", "-m 1 img": "-m", "-m x img": "-m", "--cpus none img": "--cpus", "--pids-limit x img": "--pids-limit", "--tmpfs run img": "--tmpfs",
	} {
		s := Server{Command: "docker", Args: append([]string{"run"}, strings.Fields(args)...)}
		for _, read := range []func() (Container, bool, error){s.Sealable, s.Container} {
			if c, ok, err := read(); !ok || err == nil || !strings.Contains(err.Error(), named) {
				t.Errorf("%s: %+v, %v, %v", args, c, ok, err)
			}
		}
	}
	inside, ok, err := Server{Command: "node", Args: []string{"/a.js"}, Env: map[string]string{"A": "1"}, Box: Box{Image: "img", Sealed: true}}.Sealable()
	if d := cmp.Diff(Container{Image: "img", Entrypoint: "node", Args: []string{"/a.js"}, Env: map[string]string{"A": "1"}}, inside); d != "" || !ok || err != nil {
		t.Errorf("%v, %v %s", ok, err, d)
	}
	if c, ok, err := (Server{Command: "node", Box: Box{Image: "img"}}).Sealable(); ok {
		t.Errorf("%+v, %v", c, err)
	}
}
