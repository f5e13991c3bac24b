//go:build !linux

package slack

// Take does nothing: this system has no timer slack.
func Take(args, env []string) {}
