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
			Container{Image: "img", User: "1000:1000", Entrypoint: "node", Args: []string{"a.js"}, Cwd: "/app", Env: map[string]string{"A": "1=2", "B": ""}},
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

func TestWhatABoxCannotDoForDockerIsNamed(t *testing.T) {
	for args, named := range map[string]string{
		"-i --privileged img": "--privileged", "-v /x:/y img": "-v", "--network none img": "--network", "--network=none img": "--network", "-it img": "-it", "-p 1:1 img": "-p",
		"--rm=false img": "--rm=false", "-i -e": "-e", "-i --rm": "image",
	} {
		t.Run(args, func(t *testing.T) {
			c, ok, err := Server{Command: "docker", Args: append([]string{"run"}, strings.Fields(args)...)}.Container()
			if !ok || err == nil || !strings.Contains(err.Error(), named) {
				t.Errorf("%s: %+v, %v", args, c, err)
			}
		})
	}
}
