package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A container image may contain installs, in subfolders of Config.Baked. Each subfolder is named
// by a digest of the [request] of npx or uvx.

// ErrNotBaked means that the command line of a server names no package that npx or uvx would
// install, or that this machine lacks the program that would install it.
var ErrNotBaked = errors.New("its command is not npx or uvx with a package from a registry, so there is nothing to install")

// BakeConfig describes the container image for which a server's package is installed.
type BakeConfig struct {
	To      string // folder on this machine to which the install is copied
	At      string // path of that folder in the image
	Python  string // path of the interpreter in the image
	Version string // version of that interpreter, such as 3.11, for which Python packages must be installed
}

// Bake installs the package of the server's command line, and copies the install to a folder for
// an image. Paths in the copy are those in the image. The result is the name of the copy's folder.
func (s *Provisioner) Bake(ctx context.Context, c BakeConfig) (name string, err error) {
	run := &provisioning{Provisioner: s, tell: func(Progress) {}, launch: Launch{Command: s.server.Command, Args: s.server.Args, Env: map[string]string{}}}
	r, ok := parseTool(s.server.Command, s.server.Args)
	if !ok {
		return "", ErrNotBaked
	}
	if err := run.tool(ctx); err != nil {
		return "", err
	}
	if len(run.launch.Reads) == 0 {
		return "", ErrNotBaked // nothing was installed, because this machine has no installer
	}
	name = run.bakedName(r)
	if err := run.clean(run.launch.Reads[0]); err != nil {
		return name, err
	}
	if r.kind == "pypi" {
		if err := fits(filepath.Join(run.launch.Reads[0], "venv"), c.Version); err != nil {
			return "", err
		}
	}
	to := filepath.Join(c.To, name)
	if err := errors.Join(removeInstall(to), os.MkdirAll(c.To, 0o755)); err != nil {
		return name, err
	}
	from := run.launch.Reads[0]
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return name, fmt.Errorf("copy the install: %w", err)
	}
	if r.kind == "npm" {
		return name, nil
	}
	return name, moveVenv(filepath.Join(from, "venv"), filepath.Join(to, "venv"), filepath.Join(c.At, name, "venv"), c.Python)
}

// Baked reports whether the image of this box contains the server's package.
func (s *Provisioner) Baked() bool {
	r, ok := parseTool(s.server.Command, s.server.Args)
	if !ok || s.cfg.Baked == "" {
		return false
	}
	info, err := os.Stat(filepath.Join(s.cfg.Baked, s.bakedName(r)))
	return err == nil && info.IsDir()
}

func (s *Provisioner) bakedName(r request) string {
	return digest("baked-1", r.kind, r.spec, r.program, strings.Join(r.with, " "), r.python, fmt.Sprint(s.server.Scripts))
}

// baked returns the install of a request, and the program in it. The result ok is false if the
// image does not contain that install.
func (s *provisioning) baked(r request, h handler) (dir, program string, ok bool) {
	if s.cfg.Baked == "" {
		return "", "", false
	}
	dir = filepath.Join(s.cfg.Baked, s.bakedName(r))
	program, err := h.open(dir)
	return dir, program, err == nil && executable(program)
}

// fits returns an error if a virtual environment was made for another version of Python than the
// image has.
func fits(venv, version string) error {
	lib := filepath.Join(venv, "lib")
	if _, err := os.Stat(filepath.Join(lib, "python"+version)); err == nil {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(lib, "python*"))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("the image has Python %s, and this package was installed for no version of Python", version)
	}
	return fmt.Errorf("the image has Python %s, and this package was installed for Python %s: bake it where python3 on the PATH is Python %[1]s",
		version, strings.TrimPrefix(filepath.Base(found[0]), "python"))
}

// moveVenv adapts a copy of a virtual environment to its path in the image.
func moveVenv(from, to, at, python string) error {
	bin := filepath.Join(to, "bin")
	entries, err := os.ReadDir(bin)
	if err != nil {
		return err
	}
	for _, e := range entries {
		file := filepath.Join(bin, e.Name())
		switch {
		case e.Type() == fs.ModeSymlink:
			err = relink(file, python)
		case strings.HasPrefix(e.Name(), "activate"), strings.HasSuffix(e.Name(), ".bat"):
			err = os.Remove(file)
		case e.Type().IsRegular():
			err = reshebang(file, from, at)
		}
		if err != nil {
			return err
		}
	}
	config := filepath.Join(to, "pyvenv.cfg")
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		switch name, _, _ := strings.Cut(line, "="); strings.TrimSpace(name) {
		case "home":
			line = "home = " + filepath.Dir(python) + "\n"
		case "executable", "command":
			continue
		}
		out.WriteString(line)
	}
	return os.WriteFile(config, []byte(out.String()), 0o644)
}

// relink makes an absolute link to an interpreter point to the interpreter of the image.
func relink(link, python string) error {
	to, err := os.Readlink(link)
	if err != nil || !filepath.IsAbs(to) {
		return err
	}
	return errors.Join(os.Remove(link), os.Symlink(python, link))
}

// reshebang changes the folder of the interpreter in the first line of a script, from oldDir to
// newDir.
func reshebang(file, oldDir, newDir string) error {
	text, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(text, []byte("#!")) {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bytes.Replace(text, []byte(oldDir+"/"), []byte(newDir+"/"), 1), info.Mode().Perm())
}
