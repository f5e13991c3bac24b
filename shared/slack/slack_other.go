//go:build !linux

package slack

import "time"

// Set does nothing.
func Set(time.Duration) {}

// Get returns nothing.
func Get() time.Duration { return 0 }

// Start is start.
func Start(_ time.Duration, start func() error) error { return start() }

// Take does nothing.
func Take(time.Duration, []string, []string) {}
