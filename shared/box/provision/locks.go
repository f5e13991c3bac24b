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

	"golang.org/x/sys/unix"
)

// locked is a lock: the packages that were chosen for a request, with the hashes of their files.
type locked struct {
	text []byte
	name string
}

// lockName returns the name of the lock for a request. The name begins with words for people, and
// ends with a digest of everything that the lock depends on. The argument parts may name the
// platform, but no other property of this machine.
func lockName(kind, what string, parts ...string) string {
	plain := strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._", r) {
			return r
		}
		return '-'
	}, what)
	return kind + "-" + strings.Trim(plain[:min(len(plain), 60)], "-.") + "-" + digest(append([]string{"lock-1", kind, what}, parts...)...)[:16]
}

// locked returns the lock for a request. If there is none, locked calls the function resolve with
// an empty folder to make the lock.
func (s *provisioning) locked(ctx context.Context, name, what string, resolve func(ctx context.Context, b build) ([]byte, error)) (locked, error) {
	own := filepath.Join(s.cfg.Cache, "locks", name)
	if text, err := s.readLock(own); err != nil || text != nil {
		return locked{text, name}, err
	}
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return locked{}, err
	}
	unlock, err := lock(ctx, own+".lock", unix.LOCK_EX, func() {
		s.say(DepInstall, "waiting for another start that installs %s", what)
	})
	if err != nil {
		return locked{}, err
	}
	defer unlock()
	if text, err := s.readLock(own); err != nil || text != nil {
		return locked{text, name}, err // another start has made the lock meanwhile
	}
	making := own + ".making"
	defer func() { _ = removeInstall(making) }() // after an error, the next start removes it
	if err := errors.Join(removeInstall(making), os.Mkdir(making, 0o755)); err != nil {
		return locked{}, err
	}
	output, err := record(own + ".output")
	if err != nil {
		return locked{}, err
	}
	defer func() { _ = output.f.Close() }() // an error does not matter, this is only a log
	s.say(DepInstall, "resolving %s", what)
	text, err := resolve(ctx, build{dir: making, log: output})
	if err != nil {
		s.log.Warn("resolve failed", "what", what, "output", own+".output")
		return locked{}, err
	}
	s.log.Info("resolved", "what", what, "lock", own)
	_ = os.Remove(own + ".output") // the output is needed only after a failure
	return locked{text, name}, writeFile(own, text)
}

// readLock reads a lock from Config.Locks, or else from the cache. readLock returns nil if there
// is no lock.
func (s *provisioning) readLock(own string) ([]byte, error) {
	files := []string{own}
	if s.cfg.Locks != "" {
		files = []string{filepath.Join(s.cfg.Locks, filepath.Base(own)), own}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("read a lock: %w", err)
		case len(bytes.TrimSpace(text)) == 0:
			return nil, fmt.Errorf("lock %s is empty: remove it, and the packages are resolved again", filepath.Base(file))
		}
		return text, nil
	}
	return nil, nil
}

// mismatch adds a hint to the error of an install if the registry sent bytes that do not have the
// hashes in the lock.
func (l locked) mismatch(err error) error {
	return hint(err, fmt.Sprintf("the registry gives other bytes than the lock %s names, so nothing is installed: find out why; if the new ones are wanted, remove the lock from the folder locks of the cache", l.name),
		"EINTEGRITY", "Hash mismatch")
}
