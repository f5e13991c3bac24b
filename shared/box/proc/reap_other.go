//go:build !linux

package proc

// Reap does nothing, because these systems have no subreapers.
func Reap() {}
