package storage

import (
	"context"
	"time"
)

// Rest waits for d. If ctx is done before that, it returns the error of ctx.
func Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
