package provision

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// CacheFolder makes the folder for installs and workspaces, and returns its path. If folder is "",
// CacheFolder uses the first default folder in which this process can write. The argument data is
// the data folder of this machine, "" for none.
func CacheFolder(folder, data string) (string, error) {
	folders := []string{folder}
	if folder == "" {
		folders = []string{"/var/cache/dormouse"}
		// The cache of root is left out, because servers that run as another user cannot read it.
		if own, err := os.UserCacheDir(); err == nil && os.Geteuid() != 0 {
			folders = []string{filepath.Join(own, "dormouse"), "/var/cache/dormouse"}
		}
		if data != "" {
			folders = append(folders, filepath.Join(data, "cache"))
		}
	}
	var failed []error
	for _, folder := range folders {
		err := writable(folder)
		if err == nil {
			return folder, nil
		}
		failed = append(failed, fmt.Errorf("the cache %s cannot be written by uid %d: %w", folder, os.Geteuid(), err))
	}
	return "", fmt.Errorf("%w: set DORMOUSE_CACHE to a folder that can be written", errors.Join(failed...))
}

// writable makes a folder if it is missing, and returns an error if no files can be created there.
func writable(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".writable-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
