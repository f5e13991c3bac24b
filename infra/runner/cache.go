package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// Limits of the install cache.
const (
	cacheAge = 30 * 24 * time.Hour // an install that was unused for so long is removed
	cacheMB  = 10 << 10            // unless DORMOUSE_CACHE_MB says otherwise
	tidyTime = 20 * time.Second    // only a shutdown waits for it
)

// newKeep reads DORMOUSE_CACHE_MB, a number of mebibytes. 0 means no limit, "" the default.
func newKeep(mb string) (provision.Keep, error) {
	k := provision.Keep{Age: cacheAge, Bytes: cacheMB << 20}
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
		log.Warn("some unused installs were not removed", "error", err)
	}
	if n > 0 {
		log.Info("installs removed that nobody used", "count", n)
	}
}
