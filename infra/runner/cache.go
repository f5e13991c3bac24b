package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/stage"
)

// What is kept of installs, unless the runner is told otherwise.
const (
	cacheAge = 30 * 24 * time.Hour
	cacheMB  = 10 << 10
	tidyTime = 20 * time.Second // nobody waits for it but a machine that is shut down
)

// newKeep reads DORMOUSE_CACHE_AGE, a duration, and DORMOUSE_CACHE_MB, a number of
// mebibytes; 0 is no bound, and nothing what is usual.
func newKeep(age, mb string) (stage.Keep, error) {
	k := stage.Keep{Age: cacheAge, Bytes: cacheMB << 20}
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

// tidy removes the installs that nobody has used for long.
func tidy(ctx context.Context, cache string, k stage.Keep, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, tidyTime)
	defer cancel()
	n, err := stage.Tidy(ctx, cache, k)
	if err != nil {
		log.Warn("installs that nobody uses were not all removed", "error", err)
	}
	if n > 0 {
		log.Info("installs removed that nobody used", "count", n)
	}
}
