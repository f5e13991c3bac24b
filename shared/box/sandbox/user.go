package sandbox

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// minUsers is the smallest range of ids from which the sandbox takes users. Two programs get the
// same user with a probability of one in the size of the range; only Landlock separates programs
// with the same user.
const minUsers = 1 << 14

// userOf returns the user for a policy's program. The user depends only on the Workspace, or on
// Temp if there is no Workspace, so that files there keep their owner over many starts, whichever
// runner starts the program.
func (s Support) userOf(p Policy) uint32 {
	sum := sha256.Sum256([]byte(p.Workspace + "\x00" + p.Temp))
	if p.Workspace != "" {
		sum = sha256.Sum256([]byte(p.Workspace))
	}
	return s.FirstUser + uint32(binary.BigEndian.Uint64(sum[:])%uint64(s.Users))
}

// userRange returns the range of ids for programs, from the contents of /proc/self/uid_map. The
// range is far above the ids that systems give to users. The result n is 0 if there are too few
// ids.
func userRange(idMap string) (first, n uint32) {
	const far, end = 1 << 30, 1 << 31
	for line := range strings.Lines(idMap) {
		from, count := uint64(0), uint64(0)
		if fields := strings.Fields(line); len(fields) == 3 {
			from, count = number(fields[0]), number(fields[2])
		}
		if from <= far && from+count >= end {
			return far, end - far
		}
		// Systems use the last ids for special users such as nobody.
		const last = 1 << 10
		if usable := count / 2; usable >= minUsers+last && uint32(usable-last) > n {
			first, n = uint32(from+count-usable), uint32(usable-last)
		}
	}
	return first, n
}

// number parses an id, and returns 0 if s is not a number of 32 bits.
func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// own makes a folder if it is missing, and gives it with all its contents to a user, who alone may
// enter it. A file with several hard links keeps its owner: another link may be in a shared cache,
// where the user could then change the file.
func own(dir string, user uint32) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "own", Path: dir, Err: errors.New("it is no folder")}
	}
	if user == 0 {
		return nil
	}
	if owner, _ := owned(info); owner != user {
		if err := ownTree(dir, int(user)); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// ownTree gives a folder and its contents to a user. Links cannot lead ownTree out of the folder.
// It changes the owner of the folder itself last, so that the next start repeats an interrupted
// ownTree.
func ownTree(dir string, user int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if _, names := owned(info); names > 1 && !info.IsDir() {
			return nil
		}
		return root.Lchown(path, user, user)
	})
	if err != nil {
		return err
	}
	return os.Lchown(dir, user, user)
}

// makeFolders makes the Workspace and Temp, and gives them to the user of the program.
func (s *Sandbox) makeFolders() error {
	for _, dir := range []string{s.policy.Workspace, s.policy.Temp} {
		if dir != "" {
			if err := own(dir, s.user); err != nil {
				return &Error{Step: "folders", Err: err}
			}
		}
	}
	return nil
}

func (s *Sandbox) removeTemp() error {
	if s.policy.Temp == "" {
		return nil
	}
	if err := os.RemoveAll(s.policy.Temp); err != nil {
		return &Error{Step: "end", Err: err}
	}
	return nil
}
