package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

func TestAServerFromAnImageIsStartedByTheKeeper(t *testing.T) {
	program := func(name string) string {
		dir := t.TempDir()
		commontest.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
		return dir
	}
	keeper, engine, both := program(Keeper), program("docker"), program("docker")
	commontest.OK(t, os.WriteFile(filepath.Join(both, Keeper), nil, 0o755))
	vars := filepath.Join(t.TempDir(), "vars")
	commontest.OK(t, os.WriteFile(vars, []byte("# mine\nA=file\nB=file\n"), 0o600))
	docker := func(box serversfile.Box, args ...string) serversfile.Server {
		return serversfile.Server{Command: "docker", Args: append([]string{"run", "-i"}, args...), Env: map[string]string{"TOKEN": "s3cret", "OTHER": "x"}, Box: box}
	}
	seal, hosts, folder := serversfile.Box{Sealed: true}, serversfile.Box{Sealed: true, Hosts: []string{"a.test", "*.b.test:443"}}, serversfile.WorkspaceVariable
	kept := serversfile.Box{Sealed: true, Memory: true}
	run := []string{"run", "--store", "/cache/images"}
	for name, test := range map[string]struct {
		server serversfile.Server
		path   string
		image  *frame.Image
		want   []string // the arguments of the keeper, nil if the server stays as it is
		env    map[string]string
		keeper bool // it stays as it is, and the keeper starts it
		aws    bool
		fails  string
	}{
		"without an engine":           {server: docker(serversfile.Box{}, "-e", "TOKEN", "img", "x"), path: keeper, want: append(slices.Clone(run), "--env", "TOKEN", "--written", folder+"/written", "--", "img", "x"), env: map[string]string{"TOKEN": "s3cret"}},
		"with an engine":              {server: docker(serversfile.Box{}, "img"), path: both},
		"sealed, with an engine":      {server: docker(seal, "img"), path: both, want: append(slices.Clone(run), "--written", folder+"/written", "--", "img")},
		"sealed, without a keeper":    {server: docker(seal, "img"), path: engine, fails: Keeper},
		"a word, sealed":              {server: docker(seal, "--privileged", "img"), path: both, fails: "--privileged"},
		"sealed, on AWS":              {server: docker(seal, "img"), path: keeper, image: &frame.Image{}, fails: "AWS"},
		"sealed, without an image":    {server: serversfile.Server{Command: "npx", Args: []string{"x"}, Box: seal}, path: keeper, keeper: true},
		"no image, on AWS":            {server: serversfile.Server{Command: "npx", Args: []string{"x"}, Box: seal}, path: keeper, aws: true, fails: "AWS"},
		"a command in an image":       {server: serversfile.Server{Command: "node", Args: []string{"/a.js"}, Box: serversfile.Box{Sealed: true, Image: "node:24"}}, path: keeper, want: append(slices.Clone(run), "--entrypoint", "node", "--written", folder+"/written", "--", "node:24", "/a.js"), env: map[string]string{}},
		"a list of hosts":             {server: docker(hosts, "img"), path: both, want: append(slices.Clone(run), "--host", "a.test", "--host", "*.b.test:443", "--tell", "4", "--written", folder+"/written", "--", "img")},
		"the same, with no keeper":    {server: docker(hosts, "img"), path: engine, fails: "network: a list of hosts needs a seal: " + Keeper + " is neither beside dormouse"},
		"nothing is kept":             {server: docker(serversfile.Box{Sealed: true, Snapshot: serversfile.SnapshotOff}, "img"), path: both, want: append(slices.Clone(run), "--", "img")},
		"its memory":                  {server: docker(kept, "img"), path: both, want: append(slices.Clone(run), "--control", "5", "--written", folder+"/written", "--", "img")},
		"its memory, beside a folder": {server: docker(kept, "-v", "/a:/b", "img"), path: both, fails: `memory: "keep" does not fit a folder`},
		"its memory, on AWS":          {server: docker(kept, "img"), path: both, aws: true, fails: `memory: "keep" needs a seal, which a box on AWS does not have yet`},
		"all that it keeps": {
			server: docker(serversfile.Box{Sealed: true, MemoryMB: 256, CPUs: 1.5, Pids: 64, ReadOnlyRootFS: true, Offline: true, Profile: "default", Guest: true}, "-m", "1g", "-u", "node", "-w", "/app", "-v", "/a:/b:ro", "--pull", "always", "--tmpfs", "/run", "--env-file", vars, "-e", "B=own", "img"),
			path:   keeper, env: map[string]string{"A": "file", "B": "own"},
			want: append(slices.Clone(run), "--user", "node", "--workdir", "/app", "--env", "A", "--env", "B", "--folder", "/a:/b:ro", "--tmpfs", "/run", "--memory", "256", "--cpus", "2", "--pids", "64", "--pull", "always", "--network", "off", "--read-only", "--", "img"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			logs := "/logs"
			if test.aws {
				logs = ""
			}
			s, by, err := sealed(test.server, setup{cache: "/cache", logs: logs, own: environment{"PATH": test.path}, image: test.image})
			switch {
			case test.fails != "":
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("%q, %v", s.Args, err)
				}
			case test.want == nil:
				if d := cmp.Diff(test.server, s); d != "" || err != nil || (filepath.Base(by) == Keeper) != test.keeper {
					t.Errorf("%q, %v %s", by, err, d)
				}
			default:
				if d := cmp.Diff(test.want, s.Args); d != "" || err != nil || filepath.Base(s.Command) != Keeper {
					t.Errorf("%s, %v %s", s.Command, err, d)
				}
				if d := cmp.Diff(test.env, s.Env); test.env != nil && d != "" {
					t.Error(d)
				}
				if s.Box.Confined() {
					t.Errorf("the keeper would be in a sandbox: %+v", s.Box)
				}
			}
		})
	}
}
