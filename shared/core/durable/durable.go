// Package durable writes files that survive a loss of power.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile replaces a file in one step. After a crash the file has either all new bytes or
// its old content. Until the new file has its permissions, only this user can read it. One
// caller at a time may write a path: the part that is not complete is at path + ".new".
func WriteFile(path string, text []byte, mode fs.FileMode) error {
	part := path + ".new"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part)) // a full disk keeps an empty one
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes the names in a folder last.
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
