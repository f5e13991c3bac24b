//go:build !linux

package runner

// Only the runtime of a Lambda function and sealed servers need these, and both run on Linux.
func hide() error            { return nil }
func becomeSubreaper() error { return nil }
func endDescendants() error  { return nil }
