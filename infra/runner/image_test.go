package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

func TestAServerStartsAsItsImageSays(t *testing.T) {
	docker := func(args ...string) serversfile.Server {
		return serversfile.Server{Command: "docker", Args: append([]string{"run", "-i"}, args...)}
	}
	both := &frame.Image{Entrypoint: []string{"node", "a.js"}, Cmd: []string{"--stdio"}}
	here, err := os.Getwd()
	commontest.OK(t, err)
	for name, test := range map[string]struct {
		server serversfile.Server
		image  *frame.Image
		want   []string // the folder and the command line
	}{
		"on one machine": {docker("img"), nil, []string{"", "docker", "run", "-i", "img"}},
		"as it is":       {docker("img"), both, []string{here, "node", "a.js", "--stdio"}},
		"arguments":      {docker("img", "x"), both, []string{here, "node", "a.js", "x"}},
		"an entry point": {docker("--entrypoint", "sh", "-w", "/app", "img"), both, []string{"/app", "sh"}},
		"a command only": {docker("img"), &frame.Image{Cmd: []string{"server"}}, []string{here, "server"}},
		"no docker":      {serversfile.Server{Command: "server", Args: []string{"x"}}, both, []string{"", "server", "x"}},
		"nothing":        {docker("img"), &frame.Image{}, nil},
		"no such option": {docker("--privileged", "img"), both, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := inImage(test.server, test.image)
			if got := append([]string{s.Cwd, s.Command}, s.Args...); (err != nil) != (test.want == nil) || err == nil && !cmp.Equal(test.want, got) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		})
	}
}

func TestCertificatesOfAuthoritiesAreReadFromTheVolume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roots.pem")
	commontest.OK(t, os.WriteFile(file, []byte("nothing"), 0o600))
	commontest.Check(t, trust(""))
	for _, name := range []string{file, file + "x"} {
		if err := trust(name); err == nil || !strings.Contains(err.Error(), "roots.pem") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
