package provision

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// CacheFolder returns the folder for installs and workspaces, and makes it. The folder is
// named. If named is "", CacheFolder takes the first default folder that this process can
// write. data is the folder of this machine's data, "" for none. The error says which
// folders cannot be written, by which user, and which variable to set.
func CacheFolder(named, data string) (string, error) {
	if named != "" {
		return firstWritable(named)
	}
	return firstWritable(cacheFolders(data)...)
}

// cacheFolders returns the possible cache folders. The folder in data also serves a user
// without a home.
func cacheFolders(data string) []string {
	var folders []string
	// Other users cannot read below root's home, and servers may run as another user.
	if own, err := os.UserCacheDir(); err == nil && os.Geteuid() != 0 {
		folders = append(folders, filepath.Join(own, "dormouse"))
	}
	folders = append(folders, "/var/cache/dormouse")
	if data != "" {
		folders = append(folders, filepath.Join(data, "cache"))
	}
	return folders
}

func firstWritable(folders ...string) (string, error) {
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

// writable makes a folder, and returns an error if files cannot be created in it.
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
