// Package durable writes files that survive a loss of power.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile replaces a file in one step: after a crash the file has either its new content or its old.
// Until the file has the given permissions, only this user can read the new content. Only one caller
// at a time may write a path, because the new content is first written to path + ".new".
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
		return errors.Join(err, os.Remove(part))
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes the creation, renaming and removal of files in a folder durable.
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
