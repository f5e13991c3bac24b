package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lock takes the lock of a file, which it makes, and returns what gives it back.
// It keeps out other goroutines as well as other programs. The file is left where
// it is: to remove it would let two hold a lock of one name.
//
// waiting is called once if somebody else has the lock. A call of the system that
// waits for a lock cannot be given up, so this asks again and again, ever more
// seldom.
func lock(ctx context.Context, file string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	pause := 5 * time.Millisecond
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil // which gives the lock back
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		if first {
			waiting()
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
			pause = min(2*pause, 200*time.Millisecond)
		case <-ctx.Done():
			t.Stop()
			_ = f.Close()
			return nil, fmt.Errorf("another start holds it: %w", context.Cause(ctx))
		}
	}
}
