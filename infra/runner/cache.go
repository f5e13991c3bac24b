package runner

import (
	"context"
	"log/slog"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// Limits of the install cache.
const (
	cacheAge   = 30 * 24 * time.Hour // an install that was unused for this long is removed
	cacheBytes = 10 << 30            // above this size, the installs that were unused for longest are removed
	tidyTime   = 20 * time.Second    // how long a shutdown waits for the removal
)

// tidy removes the installs in the cache that exceed cacheAge or cacheBytes.
func tidy(ctx context.Context, cache string, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, tidyTime)
	defer cancel()
	n, err := provision.Tidy(ctx, cache, provision.Keep{Age: cacheAge, Bytes: cacheBytes})
	if err != nil {
		log.Warn("some unused installs were not removed", "error", err)
	}
	if n > 0 {
		log.Info("installs removed that nobody used", "count", n)
	}
}
