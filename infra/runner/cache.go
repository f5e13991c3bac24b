package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// Default limits of the install cache.
const (
	cacheAge = 30 * 24 * time.Hour
	cacheMB  = 10 << 10
	tidyTime = 20 * time.Second // only a shutdown waits for it
)

// newKeep reads DORMOUSE_CACHE_AGE, a duration, and DORMOUSE_CACHE_MB, a number of
// mebibytes. 0 means no limit, "" the default.
func newKeep(age, mb string) (provision.Keep, error) {
	k := provision.Keep{Age: cacheAge, Bytes: cacheMB << 20}
	if age != "" {
		d, err := time.ParseDuration(age)
		if err == nil && d < 0 {
			err = errors.New("it must be 0 or more")
		}
		if err != nil {
			return k, fmt.Errorf("DORMOUSE_CACHE_AGE: want a duration such as 720h: %w", err)
		}
		k.Age = d
	}
	if mb != "" {
		n, err := strconv.ParseInt(mb, 10, 43)
		if err == nil && n < 0 {
			err = errors.New("it must be 0 or more")
		}
		if err != nil {
			return k, fmt.Errorf("DORMOUSE_CACHE_MB: want a whole number: %w", err)
		}
		k.Bytes = n << 20
	}
	return k, nil
}

// cacheFolder returns the folder for installs and workspaces: named, or else the first
// of the defaults that can be written. data is the folder of this machine's data, "" for
// none.
func cacheFolder(named, data string) (string, error) {
	if named != "" {
		return firstWritable([]string{named})
	}
	return firstWritable(cacheFolders(data))
}

// cacheFolders returns the possible cache folders. The one in data also serves a user
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

func firstWritable(folders []string) (string, error) {
	var failed []error
	for _, folder := range folders {
		err := writable(folder)
		if err == nil {
			return folder, nil
		}
		failed = append(failed, err)
	}
	return "", fmt.Errorf("no folder for installs and workspaces can be written, give one by DORMOUSE_CACHE: %w", errors.Join(failed...))
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

// dataFolder returns the folder of this machine's data, which is the parent of the log
// folder.
func dataFolder(logs string) string {
	if logs == "" {
		return ""
	}
	return filepath.Dir(logs)
}

// tidy removes installs that were not used for long.
func tidy(ctx context.Context, cache string, k provision.Keep, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, tidyTime)
	defer cancel()
	n, err := provision.Tidy(ctx, cache, k)
	if err != nil {
		log.Warn("installs that nobody uses were not all removed", "error", err)
	}
	if n > 0 {
		log.Info("installs removed that nobody used", "count", n)
	}
}
