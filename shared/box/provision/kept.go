package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Kept stores installs for longer than the cache exists. The installs belong to one box; boxes of
// other tenants cannot get them. A Kept must be safe for concurrent use.
type Kept interface {
	// Unpack unpacks the install with this name, as Pack has stored it, into an empty folder.
	// Unpack returns false if no such install is stored. It returns an error if the bytes differ
	// from those that were stored; the files in the folder must not be used after an error.
	Unpack(ctx context.Context, name, folder string) (bool, error)
	// Pack stores an install. Pack reads the folder before it returns, but may store the install
	// later. If Pack fails, a later start installs again.
	Pack(ctx context.Context, name, folder string) error
}

// A stored install is unpacked at the path where it was made, because virtual environments contain
// absolute paths. Its archive contains one folder, with the name of the folder in which the
// install was made.

// fetchKept does the work of fetch for a box with Config.Kept. It names the install by the request
// instead of the lock: versions are resolved only if no install of that name is stored.
func (s *provisioning) fetchKept(ctx context.Context, r request, h handler) (dir, program string, err error) {
	name, err := s.keptName(ctx, r, h)
	if err != nil {
		return "", "", err
	}
	return s.open(ctx, h, recipe{
		kind: r.kind, key: name, kept: name, what: r.name,
		build: func(ctx context.Context, b build) error {
			l, err := s.lockOf(ctx, r, h)
			if err != nil {
				return err
			}
			return s.fill(ctx, b, r, h, l)
		},
	})
}

// keptName returns the name of the install for a request. The name depends on everything that
// decides whether the install fits this box.
func (s *provisioning) keptName(ctx context.Context, r request, h handler) (string, error) {
	parts := []string{"kept-2", r.kind, r.spec, r.program, strings.Join(r.with, " "), r.python, h.runtime, runtime.GOOS, runtime.GOARCH, s.cfg.Cache, fmt.Sprint(s.server.Scripts)}
	if all, err := os.ReadDir(s.cfg.Locks); s.cfg.Locks == "" || err != nil || len(all) == 0 {
		return digest(parts...), nil
	}
	lock, err := h.lock(ctx)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(s.cfg.Locks, lock))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read a lock: %w", err)
	}
	return digest(append(parts, string(text))...), nil
}

func (s *provisioning) unpacked(ctx context.Context, home string, r recipe) (dir string, ok bool) {
	if r.kept == "" {
		return "", false
	}
	begun := time.Now()
	dir, err := s.unpack(ctx, home, r)
	if err != nil {
		s.log.Warn("a kept install is not used", "kind", r.kind, "what", r.what, "name", r.kept, "error", err)
	}
	if dir == "" {
		return "", false
	}
	s.log.Info("unpacked", "kind", r.kind, "what", r.what, "folder", home, "seconds", time.Since(begun).Seconds())
	return dir, true // its size is not recorded: Tidy measures the folder if necessary
}

// unpack unpacks an install into a temporary folder, and renames that folder when it is complete.
// unpack returns "" if no such install is stored, or after an error.
func (s *provisioning) unpack(ctx context.Context, home string, r recipe) (dir string, err error) {
	temp := filepath.Join(home, "made-unpacking")
	defer func() { err = errors.Join(err, removeInstall(temp)) }()
	if err := os.Mkdir(temp, 0o755); err != nil {
		return "", err
	}
	if found, err := s.cfg.Kept.Unpack(ctx, r.kept, temp); err != nil || !found {
		return "", err
	}
	inside, err := os.ReadDir(temp)
	if err != nil {
		return "", err
	}
	if len(inside) != 1 || !inside[0].IsDir() || !strings.HasPrefix(inside[0].Name(), "made-") {
		return "", errors.New("it does not hold one install")
	}
	to := filepath.Join(home, inside[0].Name())
	if err := errors.Join(removeInstall(to), os.Rename(filepath.Join(temp, inside[0].Name()), to)); err != nil {
		return "", err
	}
	if !r.whole(to) {
		return "", errors.Join(errors.New("its program cannot be executed"), removeInstall(to))
	}
	return to, nil
}

// keep lets Config.Kept store a new install, before its program has run with arguments or secrets.
// If the store fails, the install can be used all the same.
func (s *provisioning) keep(ctx context.Context, dir string, r recipe) {
	if r.kept == "" {
		return
	}
	err := s.clean(dir)
	if err == nil {
		err = s.pack(ctx, dir, r)
	}
	if err != nil {
		s.log.Warn("an install is not kept for later starts", "kind", r.kind, "what", r.what, "error", err)
	}
}

// pack moves an install into a new folder while it is packed, so that the archive contains the
// name of the install's folder.
func (s *provisioning) pack(ctx context.Context, dir string, r recipe) error {
	home := dir + "-packing"
	if err := os.Mkdir(home, 0o755); err != nil {
		return err
	}
	inside := filepath.Join(home, filepath.Base(dir))
	if err := os.Rename(dir, inside); err != nil {
		return err
	}
	err := s.cfg.Kept.Pack(ctx, r.kept, home)
	return errors.Join(err, os.Rename(inside, dir), os.Remove(home))
}

// clean fails if a file of an install contains a credential of the installers: the password of a
// URL, or the value of a variable that may be a secret.
func (s *provisioning) clean(dir string) error {
	var secrets [][]byte
	for _, pair := range s.environ() {
		name, value, _ := strings.Cut(pair, "=")
		for _, word := range credentials(name, value) {
			secrets = append(secrets, []byte(word))
		}
	}
	if len(secrets) == 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, secret := range secrets {
			if bytes.Contains(data, secret) {
				return fmt.Errorf("file %s holds a credential of the installer", filepath.Base(path))
			}
		}
		return nil
	})
}

// credentials returns those parts of a variable that are credentials.
func credentials(name, value string) []string {
	const least = 6 // bytes; a shorter word may be in a package by chance
	var found []string
	for _, word := range strings.Fields(value) {
		if in := userinfo.FindStringSubmatch(word); in != nil {
			user, _, _ := strings.Cut(in[1], "@")
			if _, password, ok := strings.Cut(user, ":"); ok {
				user = password
			}
			found = append(found, user)
		}
	}
	if namesSecret(name) {
		found = append(found, value)
	}
	return slices.DeleteFunc(found, func(word string) bool { return len(word) < least })
}
