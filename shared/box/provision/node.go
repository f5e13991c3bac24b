package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// nodeVersion is a script that prints all that compiled packages depend on.
const nodeVersion = "console.log(process.version,process.versions.modules,process.platform,process.arch)"

// node installs the packages of package-lock.json in Server.HostPath, or those that package.json
// there asks for. node makes node_modules of the workspace a link to these packages. If
// node_modules is a folder, the process has made it, and node does nothing.
func (s *provisioning) node(ctx context.Context) error {
	if info, err := os.Lstat(filepath.Join(s.launch.Workspace, "node_modules")); err == nil && info.IsDir() {
		return nil
	}
	want, err := s.readNode(ctx)
	if err != nil || want.lock == "" && !want.open {
		return err
	}
	npm, err := s.program("npm")
	if err != nil {
		return installError(fmt.Errorf("no npm in PATH: install Node.js where boxes run: %w", err))
	}
	node, err := s.program("node")
	if err != nil {
		return installError(fmt.Errorf("no node in PATH: install Node.js where boxes run: %w", err))
	}
	version, err := s.version(ctx, node, "-e", nodeVersion)
	if err != nil {
		return installError(err)
	}
	if want.open {
		if err := s.lockNode(ctx, npm, &want); err != nil {
			return installError(full(s.cfg.Cache, err))
		}
	}
	dir, err := s.install(ctx, recipe{
		kind: "node", key: digest(append([]string{"node-2", version, fmt.Sprint(s.server.Scripts)}, want.parts...)...), what: "the Node.js dependencies",
		build: func(ctx context.Context, b build) error { return s.buildNode(ctx, b, npm, node, want) },
	})
	if err != nil {
		return err
	}
	s.launch.Reads = append(s.launch.Reads, dir)
	s.launch.Unrun = unrun(dir)
	modules := filepath.Join(dir, "node_modules")
	if err := os.MkdirAll(modules, 0o755); err != nil { // a package-lock.json may list no packages, so there is no folder yet
		return err
	}
	s.launch.Path = append([]string{filepath.Join(modules, ".bin")}, s.launch.Path...)
	return s.link(modules)
}

// nodeWants is what package.json and package-lock.json in Server.HostPath ask for. If lock is "" and
// open is false, there is nothing to install.
type nodeWants struct {
	lock  string            // name of the lock file, "" for none
	files map[string][]byte // the manifests that npm needs, by name
	local bool              // the lock names folders of the project, so npm needs the project's source
	open  bool              // package.json asks for packages, and there is no lock file
	parts []string          // everything that decides what is installed, for digests
}

func (s *provisioning) readNode(ctx context.Context) (nodeWants, error) {
	want := nodeWants{files: map[string][]byte{}}
	root, err := os.OpenRoot(s.host)
	if err != nil {
		return want, err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	for _, name := range []string{"package.json", "npm-shrinkwrap.json", "package-lock.json", ".npmrc"} {
		data, err := manifest(root, name)
		if err != nil {
			return want, installError(err)
		}
		if data == nil {
			continue
		}
		want.files[name] = data
		want.parts = append(want.parts, name, string(data))
		if strings.HasSuffix(name, "lock.json") || strings.HasSuffix(name, "shrinkwrap.json") {
			want.lock = name
			want.local = want.local || hasLocal(data)
		}
	}
	if want.files["package.json"] == nil {
		want.lock = ""
	} else if want.lock == "" {
		want.open, err = asks(want.files["package.json"])
		return want, err
	}
	if want.lock == "" || !want.local {
		return want, nil
	}
	code, err := source(ctx, s.host)
	want.parts = append(want.parts, code)
	return want, err
}

// asks reports whether a package.json asks for packages of a registry. asks returns an error if
// package.json names folders, because npm could resolve them only in the project itself.
func asks(manifest []byte) (bool, error) {
	var p struct {
		Workspaces           json.RawMessage
		Dependencies         map[string]string
		OptionalDependencies map[string]string
	}
	if err := json.Unmarshal(manifest, &p); err != nil {
		return false, installError(fmt.Errorf("package.json: %w", err))
	}
	local := p.Workspaces != nil
	for _, from := range p.Dependencies {
		local = local || strings.HasPrefix(from, "file:") || strings.HasPrefix(from, "link:") || strings.HasPrefix(from, "workspace:")
	}
	if local {
		return false, installError(errors.New("package.json names folders, and there is no package-lock.json beside it: run npm install in that folder"))
	}
	return len(p.Dependencies)+len(p.OptionalDependencies) > 0, nil
}

// lockNode resolves the packages that package.json asks for, and adds the package-lock.json to the
// argument want. The lock stays in the cache, so that each start installs the same packages until
// package.json changes.
func (s *provisioning) lockNode(ctx context.Context, npm string, want *nodeWants) error {
	l, err := s.locked(ctx, lockName("npm", "project", want.parts...), "the Node.js dependencies", func(ctx context.Context, b build) ([]byte, error) {
		if err := want.write(b.dir); err != nil {
			return nil, err
		}
		return s.npmLock(ctx, b, npm)
	})
	if err != nil {
		return err
	}
	want.lock = "package-lock.json"
	want.files[want.lock], want.parts = l.text, append(want.parts, want.lock, string(l.text))
	return nil
}

// hasLocal reports whether a lock file names folders of the project.
func hasLocal(lock []byte) bool {
	all, err := npmPackages(lock)
	if err != nil {
		return false // npm will report what is wrong with the lock
	}
	for _, p := range all {
		if p.Link || strings.HasPrefix(p.Resolved, "file:") {
			return true
		}
	}
	return false
}

// buildNode installs into b.dir what the manifests ask for.
func (s *provisioning) buildNode(ctx context.Context, b build, npm, node string, want nodeWants) error {
	if want.local {
		if err := refresh(ctx, s.host, b.dir, filepath.Join(filepath.Dir(b.dir), "source.json")); err != nil {
			return err
		}
	}
	if err := want.write(b.dir); err != nil {
		return err
	}
	return s.npmCI(ctx, b, npm, node)
}

func (w nodeWants) write(dir string) error {
	for name, data := range w.files {
		if name == "package.json" {
			// Scripts of the project itself, such as prepare, would need the project's source, which is
			// not in this folder.
			data = withoutScripts(data)
		}
		if name == ".npmrc" {
			data = settings(data)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// settings returns the lines of an .npmrc about registries, how to reach them, and what to install.
// Other lines may name programs to execute and folders to write to.
func settings(npmrc []byte) []byte {
	var kept strings.Builder
	for line := range strings.Lines(string(npmrc)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		name = strings.TrimSpace(name)
		switch {
		case strings.HasPrefix(name, "//"), name == "registry", strings.HasSuffix(name, ":registry"):
		case slices.Contains([]string{
			"ca", "ca[]", "cafile", "strict-ssl", "proxy", "https-proxy", "noproxy", "always-auth", "legacy-peer-deps", "install-links",
			"omit", "omit[]", "include", "include[]", "engine-strict", "replace-registry-host",
		}, name):
		default:
			continue
		}
		kept.WriteString(strings.TrimRight(line, "\r\n") + "\n")
	}
	return []byte(kept.String())
}

// withoutScripts removes the scripts from a package.json. Data that it cannot parse is returned
// unchanged, and npm reports the error.
func withoutScripts(data []byte) []byte {
	var p map[string]json.RawMessage
	if json.Unmarshal(data, &p) != nil {
		return data
	}
	delete(p, "scripts")
	out, err := json.Marshal(p)
	if err != nil {
		return data
	}
	return out
}

// link makes node_modules in the workspace a link to the node_modules of an install.
func (s *provisioning) link(modules string) error {
	root, err := os.OpenRoot(s.launch.Workspace)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // each write through root has returned its own error
	const name, temp = "node_modules", ".node_modules-new"
	if now, err := root.Readlink(name); err == nil && now == modules {
		return nil
	}
	if info, err := root.Lstat(name); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return fmt.Errorf("node_modules of the workspace is in the way of an install")
	}
	if err := root.RemoveAll(temp); err != nil {
		return err
	}
	if err := root.Symlink(modules, temp); err != nil {
		return err
	}
	return root.Rename(temp, name)
}
