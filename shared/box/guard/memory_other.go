//go:build !linux

package guard

// Left returns false for known: the free memory is known only on Linux.
func Left() (free, total int64, known bool) { return 0, 0, false }
