package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Packages execute code while they are installed: install scripts of npm, and builds of Python
// source distributions. That code is not trusted: it runs in a sandbox or not at all.

// scriptsSetting is the setting by which an operator allows packages to execute code.
const scriptsSetting = "x-dormouse.box.install_scripts: true"

// confined runs a command in a sandbox that allows only what w says. The command gets those variables
// of its environment that contain no secrets, and the variables in more.
func (s *provisioning) confined(ctx context.Context, w Workshop, c command, more ...string) ([]byte, error) {
	if s.cfg.Confine == nil {
		return nil, errors.New("there is no sandbox to run the code of packages in")
	}
	w.Read = slices.DeleteFunc(w.Read, func(path string) bool { return path == "" })
	inside, err := s.cfg.Confine(w)
	if err != nil {
		return nil, fmt.Errorf("packages run their code in a sandbox only: %w", err)
	}
	c.env, c.start = append(slices.DeleteFunc(c.env, secret), more...), inside.Start
	for name, value := range inside.Environment() {
		c.env = append(c.env, name+"="+value)
	}
	out, err := c.run(ctx)
	return out, errors.Join(err, inside.End())
}

// secret reports whether a variable may contain a secret, or names a folder that does not exist in
// the sandbox.
func secret(pair string) bool {
	name, value, _ := strings.Cut(pair, "=")
	name = strings.ToUpper(name)
	if name == "HOME" || name == "TMPDIR" || withoutCredentials(value) != value {
		return true
	}
	name = strings.TrimPrefix(name, "NPM_CONFIG_")
	return namesSecret(name) || containsAny(name, "USER", "CLIENT_CERT", "CACHE", "CONFIG_FILE", "GLOBALCONFIG", "PREFIX")
}

// namesSecret reports whether a variable's name suggests that its value is a secret.
func namesSecret(name string) bool {
	return containsAny(strings.ToUpper(name), "TOKEN", "SECRET", "PASS", "AUTH", "KEY", "CRED")
}

func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// unrunFile is the file in an install that lists the packages whose install scripts were not run.
const unrunFile = "scripts-not-run"

func unrun(dir string) []string {
	text, err := os.ReadFile(filepath.Join(dir, unrunFile))
	if err != nil {
		return nil // normally all scripts were run, and there is no such file
	}
	return strings.Fields(string(text))
}

// withScripts returns the names of the packages in node_modules that have install scripts.
func withScripts(dir string) []string {
	var found []string
	// Files that cannot be read are skipped, because the list is only for a hint.
	_ = filepath.WalkDir(filepath.Join(dir, "node_modules"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "package.json" || !e.Type().IsRegular() {
			return nil
		}
		above := filepath.Dir(filepath.Dir(path))
		if in := filepath.Base(above); in != "node_modules" && (!strings.HasPrefix(in, "@") || filepath.Base(filepath.Dir(above)) != "node_modules") {
			return nil // the file is deeper in a package, so it is not the package's manifest
		}
		var p struct {
			Scripts map[string]string `json:"scripts"`
		}
		data, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(data, &p) != nil {
			return nil
		}
		_, gyp := os.Stat(filepath.Join(filepath.Dir(path), "binding.gyp"))
		if p.Scripts["preinstall"] != "" || p.Scripts["install"] != "" || p.Scripts["postinstall"] != "" || gyp == nil {
			name, _ := filepath.Rel(above, filepath.Dir(path))
			if in := filepath.Base(above); in != "node_modules" {
				name = in + "/" + name
			}
			found = append(found, name)
		}
		return nil
	})
	slices.Sort(found)
	return slices.Compact(found)
}

// runScripts runs the install scripts of all packages in b.dir, in a sandbox, and copies the
// result. No link in the copy leads out of the folder, and no process that a script has left
// running can change the copy.
func (s *provisioning) runScripts(ctx context.Context, b build, npm, node string) error {
	work := b.dir + "-scripts"
	if err := errors.Join(os.Rename(b.dir, work), os.Mkdir(b.dir, 0o755)); err != nil {
		return err
	}
	argv := []string{npm, "rebuild", "--ignore-scripts=false", "--foreground-scripts", "--no-update-notifier", "--loglevel=error"}
	// Newer versions of npm demand that each package is allowed by name; this variable allows all
	// packages.
	env := s.environ("npm_config_dangerously_allow_all_scripts=true")
	w := Workshop{Folder: work, Programs: realPaths(npm, node)}
	if _, err := s.confined(ctx, w, command{argv: argv, dir: work, env: env, log: b.log}); err != nil {
		return fmt.Errorf("npm rebuild: %w", err)
	}
	if err := copyOut(ctx, work, b.dir); err != nil {
		return fmt.Errorf("take over what install scripts have made: %w", err)
	}
	return os.RemoveAll(work)
}

func realPaths(programs ...string) []string {
	var all []string
	for _, p := range programs {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			all = append(all, real)
		}
	}
	return all
}

// copyOut copies folders, regular files, and links that do not lead out of the copy. A process may
// still write to the source, so copyOut follows no link there and does not block on a pipe.
func copyOut(ctx context.Context, from, to string) error {
	src, dst, done, err := openRoots(from, to)
	if err != nil {
		return err
	}
	defer done()
	var links []string
	err = fs.WalkDir(src.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case e.IsDir():
			return dst.Mkdir(name, 0o755)
		case e.Type() == fs.ModeSymlink:
			links = append(links, name)
			target, err := src.Readlink(name)
			if err != nil {
				return err
			}
			return dst.Symlink(target, name)
		case e.Type().IsRegular():
			return copyFile(src, dst, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range links {
		if _, err := dst.Stat(name); err != nil { // Stat also fails if the link leads out of the folder
			if err := dst.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyFile copies a regular file, with its time and its executable bits.
func copyFile(src, dst *os.Root, name string) (err error) {
	in, err := src.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // nothing was written
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	out, err := dst.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return dst.Chtimes(name, info.ModTime(), info.ModTime()) // Python compares the time of a source file with its compiled file
}
