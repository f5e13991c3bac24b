//go:build !linux

package timerslack

// Take does nothing: this system has no timer slack.
func Take(args, env []string) {}
