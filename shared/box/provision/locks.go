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

// locked is a lock: the packages for a request, with the hashes of their files.
type locked struct {
	text []byte
	name string
	// made is a folder with the files fetched to make the lock, "" for a lock that
	// existed. done removes it.
	made string
	done func()
}

// lockName names the lock of a request. The name begins with words that people can read.
// It ends in a digest of everything that the lock depends on. parts may name the
// platform, and no other property of this machine.
func lockName(kind, what string, parts ...string) string {
	plain := strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._", r) {
			return r
		}
		return '-'
	}, what)
	return kind + "-" + strings.Trim(plain[:min(len(plain), 60)], "-.") + "-" + digest(append([]string{"lock-1", kind, what}, parts...)...)[:16]
}

// locked reads the lock of a request. If there is none, resolve makes it in an empty
// folder. The caller calls done of the result.
func (s *provisioning) locked(ctx context.Context, name, what string, resolve func(ctx context.Context, b build) ([]byte, error)) (locked, error) {
	own := filepath.Join(s.cfg.Cache, "locks", name)
	l := locked{name: name, done: func() {}}
	if text, err := s.readLock(own); err != nil || text != nil {
		l.text = text
		return l, err
	}
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return l, err
	}
	unlock, err := lock(ctx, own+".lock", func() {
		s.say(DepInstall, "waiting for another start that installs %s", what)
	})
	if err != nil {
		return l, err
	}
	if text, err := s.readLock(own); err != nil || text != nil { // the other start has made it
		unlock()
		l.text = text
		return l, err
	}
	l.made = own + ".making"
	l.done = func() {
		_ = os.RemoveAll(l.made) // if this fails, the next try removes it
		unlock()
	}
	if l.text, err = s.resolved(ctx, own, l.made, what, resolve); err != nil {
		l.done()
		l.done = func() {}
	}
	return l, err
}

// resolved makes a lock and stores it.
func (s *provisioning) resolved(ctx context.Context, own, dir, what string, resolve func(ctx context.Context, b build) ([]byte, error)) ([]byte, error) {
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
		return nil, err
	}
	output, err := record(own + ".output")
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }() // a short log is no failure
	s.say(DepInstall, "resolving %s", what)
	text, err := resolve(ctx, build{dir: dir, log: output})
	if err != nil {
		s.log.Warn("resolve failed", "what", what, "output", own+".output")
		return nil, err
	}
	s.log.Info("resolved", "what", what, "lock", own)
	_ = os.Remove(own + ".output") // only needed after a failure
	return text, writeFile(own, text)
}

// readLock reads a lock. It returns nil if there is none.
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

// mismatch adds a hint to the error of an install if the bytes from the registry do not
// have the hashes in the lock.
func (l locked) mismatch(err error) error {
	return hint(err, fmt.Sprintf("the registry gives other bytes than the lock %s names, so nothing is installed: find out why; if the new ones are wanted, remove the lock from the folder locks of the cache", l.name),
		"EINTEGRITY", "DO NOT MATCH THE HASHES", "Hash mismatch")
}

// fileHash returns the hash of a file in the form of requirements files.
func fileHash(file string) (string, error) {
	root, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // only read
	sum, err := fileDigest(root, filepath.Base(file))
	return "sha256:" + sum, err
}
