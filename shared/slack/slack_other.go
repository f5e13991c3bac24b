//go:build !linux

package slack

import "time"

// Set does nothing.
func Set(time.Duration) {}

// Get returns nothing.
func Get() time.Duration { return 0 }

// Take does nothing.
func Take(time.Duration, []string, []string) {}
