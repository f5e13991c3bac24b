package runner

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// root and user are what the system offers runners with all features of Linux: a runner
// that is root, and one that is not.
var (
	root = sandbox.Support{Limits: true, Landlock: 7, Seccomp: true, FirstUser: 1 << 30, Users: 1 << 20}
	user = sandbox.Support{Limits: true, Landlock: 7, Seccomp: true}
)

// confined makes the confiner of a server without toolchains in other folders.
func confined(t *testing.T, b serversfile.Box, on sandbox.Support) (*confiner, error) {
	t.Helper()
	return newConfiner(serversfile.Server{Name: "s", Box: b}, t.TempDir(), map[string]string{"HOME": "/home/me"}, on)
}

func TestBoxSettingsBecomeAPolicy(t *testing.T) {
	placed := provision.Launch{Command: "/nowhere", Cwd: "/w/workspace", Workspace: "/w/workspace", Reads: []string{"/cache/node/x"}}
	enclosed := []sandbox.Guard{sandbox.GuardSockets, sandbox.GuardFiles, sandbox.GuardNeighbours}
	limits := []sandbox.Guard{sandbox.GuardMemory, sandbox.GuardCPUs}
	tests := map[string]struct {
		box  serversfile.Box
		on   sandbox.Support
		want sandbox.Policy
	}{
		"a profile without network": {
			serversfile.Box{Profile: "default", Offline: true, CPUs: 1, MemoryMB: 512, Pids: 128, ReadOnlyRootFS: true},
			root,
			sandbox.Policy{
				Workspace: "/w/workspace", Temp: "/t", Read: []string{"/cache/node/x"}, Memory: 512 << 20, Processes: 128, CPUs: 1,
				Demand: slices.Concat([]sandbox.Guard{sandbox.GuardNetwork}, enclosed, limits),
			},
		},
		"a profile with network and a writable disk": {
			serversfile.Box{Profile: "network_extended", CPUs: 2, MemoryMB: 1024, Pids: 256},
			user,
			sandbox.Policy{
				Sockets: sandbox.InternetSockets, Workspace: "/w/workspace", Temp: "/t", Read: []string{"/cache/node/x"}, Write: existing("/tmp", "/var/tmp"),
				Memory: 1024 << 20, Processes: 256, CPUs: 2, Demand: slices.Concat(enclosed, limits),
			},
		},
		"a limit alone under root": {
			serversfile.Box{Pids: 9},
			root,
			sandbox.Policy{Sockets: sandbox.AllSockets, Workspace: "/w/workspace", Temp: "/t", Write: []string{"/"}, Processes: 9},
		},
		"a folder of the user to work in": {
			serversfile.Box{ReadOnlyRootFS: true, HostPath: "/w/workspace", HostPathWritable: true},
			root,
			sandbox.Policy{
				Sockets: sandbox.InternetSockets, KeepUser: true, Temp: "/t", Read: []string{"/cache/node/x"}, Write: []string{"/w/workspace"}, Demand: enclosed,
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := confined(t, test.box, test.on)
			commontest.OK(t, err)
			commontest.Same(t, test.want, c.policy(placed, "/t"))
		})
	}
}

func TestServerIsRefusedWhereItsSandboxCannotBe(t *testing.T) {
	noLandlock := sandbox.Support{Limits: true, Seccomp: true}
	tests := map[string]struct {
		box  serversfile.Box
		on   sandbox.Support
		want string // in the error; "" for none
	}{
		"no network, no seccomp": {serversfile.Box{Offline: true}, sandbox.Support{Limits: true, Landlock: 7}, "network"},
		"a profile, no seccomp":  {serversfile.Box{Profile: "network_basic"}, sandbox.Support{Limits: true, Landlock: 7}, "sockets"},
		"a profile, no landlock": {serversfile.Box{Profile: "network_basic"}, noLandlock, "files"},
		"read-only, no landlock": {serversfile.Box{ReadOnlyRootFS: true}, noLandlock, "files"},
		"a profile, not linux":   {serversfile.Box{Profile: "network_basic", MemoryMB: 9}, sandbox.Support{}, "memory"},
		"a limit, not linux":     {serversfile.Box{MemoryMB: 9}, sandbox.Support{}, ""},
		"all that is to be had":  {serversfile.Box{Profile: "default", Offline: true, CPUs: 1, Pids: 9}, root, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := confined(t, test.box, test.on)
			if test.want == "" {
				commontest.CheckIn(t, "refused", err)
				return
			}
			if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), test.want+":") {
				t.Fatalf("error %v, want a refusal for %s", err, test.want)
			}
			_, err = refused{whyRefused(err)}.Provision(t.Context(), "p", nil, nil)
			var e *provision.Error
			if !errors.As(err, &e) || e.Phase != provision.SessionCreate || !strings.Contains(err.Error(), "x-dormouse.box") {
				t.Errorf("the start fails with %v", err)
			}
		})
	}
}

// A certificate that the machine trusts is good for nothing if a server cannot read it.
func TestEnclosedServerReadsTheCertificatesThatItIsToldOf(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"corp.pem", "own.pem", "unset.pem"} {
		commontest.OK(t, os.WriteFile(filepath.Join(folder, name), nil, 0o600))
	}
	s := serversfile.Server{
		Name: "s", Env: map[string]string{"NODE_EXTRA_CA_CERTS": filepath.Join(folder, "own.pem")}, Unset: []string{"CURL_CA_BUNDLE"}, Box: serversfile.Box{Profile: "network_basic"},
	}
	machine := map[string]string{
		"HOME": "/home/me", "SSL_CERT_FILE": filepath.Join(folder, "corp.pem"), "SSL_CERT_DIR": folder + ":/does/not/exist", "REQUESTS_CA_BUNDLE": "corp.pem",
		"NODE_EXTRA_CA_CERTS": filepath.Join(folder, "none.pem"), "CURL_CA_BUNDLE": filepath.Join(folder, "unset.pem"), "HTTP_PROXY": folder,
	}
	c, err := newConfiner(s, t.TempDir(), surroundings(s, machine), user)
	commontest.OK(t, err)
	want := []string{filepath.Join(folder, "corp.pem"), folder, filepath.Join(folder, "own.pem")}
	commontest.Same(t, want, c.policy(provision.Launch{Command: "/nowhere"}, "/t").Read)
}

func TestEnclosedServerSeesTheToolchainsOfItsPathAndNoMoreOfTheHome(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	commontest.OK(t, err)
	node, shims, bin := filepath.Join(home, ".nvm", "versions", "v22"), filepath.Join(home, ".pyenv", "shims"), filepath.Join(home, "bin")
	for _, file := range []string{filepath.Join(node, "bin", "node"), filepath.Join(node, "lib", "x"), filepath.Join(shims, "python3"), filepath.Join(bin, "tool"), filepath.Join(home, "notes")} {
		commontest.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		commontest.OK(t, os.WriteFile(file, nil, 0o700))
	}
	path := strings.Join([]string{filepath.Join(node, "bin"), shims, bin}, ":")
	c := &confiner{box: serversfile.Box{Profile: "default"}, on: user, env: map[string]string{"HOME": home, "PATH": path}}
	got := c.policy(provision.Launch{Command: "tool"}, "/t").Read
	slices.Sort(got)
	want := []string{filepath.Join(node, "bin"), filepath.Join(node, "lib"), filepath.Dir(shims), bin}
	slices.Sort(want)
	commontest.Same(t, want, got)
}

func TestEnclosedServerSeesTheVirtualEnvironmentOfItsCommand(t *testing.T) {
	venv := filepath.Join(t.TempDir(), "venv")
	python, script := filepath.Join(venv, "bin", "python"), filepath.Join(venv, "bin", "server")
	for _, dir := range []string{"bin", "lib"} {
		commontest.OK(t, os.MkdirAll(filepath.Join(venv, dir), 0o700))
	}
	commontest.OK(t, os.WriteFile(filepath.Join(venv, "pyvenv.cfg"), nil, 0o600))
	commontest.OK(t, os.Symlink("/bin/sh", python))
	commontest.OK(t, os.WriteFile(script, []byte("#!"+python+"\n"), 0o700))
	c := &confiner{box: serversfile.Box{Profile: "default"}, on: user, env: map[string]string{"HOME": "/home/me"}}
	want := []string{filepath.Join(venv, "bin"), filepath.Join(venv, "lib"), filepath.Join(venv, "pyvenv.cfg")}
	for _, command := range []string{python, script} {
		placed := provision.Launch{Command: command}
		for how, got := range map[string][]string{"policy": c.policy(placed, "/t").Read, "seal": c.ways(placed)} {
			for _, path := range want {
				if !slices.Contains(got, path) {
					t.Errorf("the %s of %s lacks %s", how, command, path)
				}
			}
		}
	}
}

// made writes an executable file below a folder that only its owner can enter, or everybody.
func made(t *testing.T, mode os.FileMode, text string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "bin", "program")
	commontest.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
	commontest.OK(t, os.WriteFile(file, []byte(text), 0o755))
	commontest.OK(t, os.Chmod(filepath.Dir(dir), 0o755))
	commontest.OK(t, os.Chmod(dir, mode))
	return file
}

func TestAGuestHasTheNetworkItsWorkspaceAndWhatItsCommandLineNames(t *testing.T) {
	everybody := made(t, 0o755, "#!/bin/sh\n")
	private := made(t, 0o700, "")
	for name, test := range map[string]struct {
		command  string
		keepUser bool
	}{
		"another user can start it":         {everybody, false},
		"only its owner can":                {private, true},
		"only its owner has an interpreter": {made(t, 0o755, "#!"+private+" -u\n"), true},
		"found by env":                      {made(t, 0o755, "#!/usr/bin/env "+private+"\n"), true},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := confined(t, serversfile.Box{Guest: true, ReadOnlyRootFS: true}, root)
			commontest.OK(t, err)
			named := filepath.Dir(everybody)
			got := c.policy(provision.Launch{
				Command: test.command, Workspace: "/w/workspace", Args: []string{"--db=" + everybody, named, "/", "/does/not/exist", "relative", "--flag"},
			}, "/t")
			if !slices.Contains(got.Read, everybody) || !slices.Contains(got.Read, named) || slices.Contains(got.Read, "/") {
				t.Errorf("it reads %q", got.Read)
			}
			got.Read = nil
			want := sandbox.Policy{
				Sockets: sandbox.InternetSockets, KeepUser: test.keepUser, Workspace: "/w/workspace", Temp: "/t",
				Demand: []sandbox.Guard{sandbox.GuardSockets, sandbox.GuardFiles, sandbox.GuardNeighbours},
			}
			commontest.Same(t, want, got)
		})
	}
}
