package provision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// recipe describes an install that many starts may share.
type recipe struct {
	kind string // name of the folder in the cache for installs of this kind
	key  string // digest of everything that determines the contents
	what string // what is installed, for progress reports
	// build installs into an empty folder.
	build func(ctx context.Context, b build) error
	// kept is the name of the install in Config.Kept, "" if it is stored only on this machine.
	kept string
	// whole reports whether a finished install can still be used; nil means always.
	whole func(dir string) bool
}

// build is the folder and the log of an install that is being made.
type build struct {
	dir string
	log *output
}

// install returns the folder of an install, which it makes if necessary.
func (s *provisioning) install(ctx context.Context, r recipe) (string, error) {
	dir, err := s.installed(ctx, r)
	return dir, installError(full(s.cfg.Cache, err))
}

func (s *provisioning) installed(ctx context.Context, r recipe) (string, error) {
	home := filepath.Join(s.cfg.Cache, r.kind, r.key)
	if err := s.hold(ctx, home); err != nil {
		return "", err
	}
	if dir, ok := r.ready(home); ok {
		return dir, nil
	}
	unlock, err := lock(ctx, filepath.Join(home, "lock"), unix.LOCK_EX, func() {
		s.say(DepInstall, "waiting for another start that installs %s", r.what)
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir, ok := r.ready(home); ok {
		return dir, nil // another start has made the install meanwhile
	}
	return s.make(ctx, home, r)
}

// make makes an install in a folder with a new name, because a program that a crashed start has
// left running may still write into the old folder.
func (s *provisioning) make(ctx context.Context, home string, r recipe) (string, error) {
	left, err := filepath.Glob(filepath.Join(home, "made-*"))
	if err != nil {
		return "", err
	}
	for _, dir := range left {
		if err := removeInstall(dir); err != nil {
			return "", fmt.Errorf("remove an unfinished install: %w", err)
		}
	}
	dir, err := os.MkdirTemp(home, "made-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // servers may run as another user
		return "", err
	}
	output, err := record(filepath.Join(home, "output"))
	if err != nil {
		return "", err
	}
	defer func() { _ = output.f.Close() }() // an error does not matter, this is only a log
	if kept, ok := s.unpacked(ctx, home, r); ok {
		_ = removeInstall(dir) // after an error, the next start removes the folder
		return kept, writeFile(filepath.Join(home, "ready"), []byte(filepath.Base(kept)))
	}
	s.say(DepInstall, "installing %s", r.what)
	begun := time.Now()
	if err := r.build(ctx, build{dir: dir, log: output}); err != nil {
		s.log.Warn("install failed", "kind", r.kind, "what", r.what, "folder", home, "seconds", time.Since(begun).Seconds())
		_ = removeInstall(dir) // after an error, the next start removes the folder
		return "", err
	}
	s.log.Info("installed", "kind", r.kind, "what", r.what, "folder", home, "seconds", time.Since(begun).Seconds())
	s.say(DepInstall, "installed %s in %.1f s", r.what, time.Since(begun).Seconds())
	s.measure(home, dir)
	s.keep(ctx, dir, r)
	return dir, writeFile(filepath.Join(home, "ready"), []byte(filepath.Base(dir)))
}

// ready returns the folder of a finished install. The result ok is false if there is no such
// install, or if it cannot be used any more.
func (r recipe) ready(home string) (dir string, ok bool) {
	name, err := os.ReadFile(filepath.Join(home, "ready"))
	if err != nil || !strings.HasPrefix(string(name), "made-") || !filepath.IsLocal(string(name)) {
		return "", false
	}
	dir = filepath.Join(home, string(name))
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", false
	}
	return dir, r.whole == nil || r.whole(dir)
}

// removeInstall removes a folder of an install, even if parts of it are read-only.
func removeInstall(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	// If the modes cannot be changed, the second RemoveAll fails too.
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// maxManifest is the largest manifest that is read, in bytes.
const maxManifest = 10 << 20

// manifest reads a file in root, such as package.json. manifest returns nil if the file does not
// exist, and an error for a link that leads out of root.
func manifest(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	case len(data) > maxManifest:
		return nil, fmt.Errorf("manifest %s is over the limit of %d MiB", name, maxManifest>>20)
	}
	return data, nil // not nil, even for an empty file
}

// source returns a digest of all files in a folder, except those that refresh does not copy.
func source(ctx context.Context, folder string) (string, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	t, err := scan(ctx, root, folder)
	if err != nil {
		return "", err
	}
	var parts []string
	for _, name := range t.names() {
		e := t[name]
		parts = append(parts, name, e.Mode.String(), e.Link)
		if e.Mode.IsRegular() {
			sum, err := fileDigest(root, name)
			if err != nil {
				return "", err
			}
			parts = append(parts, sum)
		}
	}
	return digest(parts...), nil
}

func fileDigest(root *os.Root, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // nothing was written
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// version returns the version that a program prints. The answer of a binary is cached under the
// identity of its file. A script is asked each time, because a version manager may change its
// answer.
func (s *provisioning) version(ctx context.Context, program string, question ...string) (string, error) {
	_, binary := identity(program)
	return s.ask(ctx, binary, program, question...)
}

// ask returns the program's answer to a question. If keep is true, it looks in the cache first, and
// stores the answer there.
func (s *provisioning) ask(ctx context.Context, keep bool, program string, question ...string) (string, error) {
	id, _ := identity(program)
	file := filepath.Join(s.cfg.Cache, "versions", digest(append([]string{id}, question...)...))
	if known, err := os.ReadFile(file); keep && err == nil {
		return string(known), nil
	}
	out, err := command{argv: append([]string{program}, question...), env: s.environ(), dir: s.host}.run(ctx)
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", filepath.Base(program), err)
	}
	answer := strings.TrimSpace(string(out))
	if keep && os.MkdirAll(filepath.Dir(file), 0o755) == nil {
		_ = writeFile(file, []byte(answer)) // after an error, the next start asks again
	}
	return answer, nil
}

// identity returns a string that identifies a file by its path, size and time. The result binary
// reports whether the file is not a script.
func identity(program string) (id string, binary bool) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return program, false
	}
	f, err := os.Open(real)
	if err != nil {
		return real, false
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	if err != nil {
		return real, false
	}
	start := make([]byte, 2)
	_, err = io.ReadFull(f, start)
	return fmt.Sprint(real, info.Size(), info.ModTime().UnixNano()), err == nil && string(start) != "#!"
}
