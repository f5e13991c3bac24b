//go:build !linux

package proc

// Reap does nothing: these systems have no subreapers.
func Reap() {}
