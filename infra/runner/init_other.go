//go:build !linux

package runner

import "errors"

// supervise fails, because only Linux has first processes of containers.
func supervise(string, []string, []string) (code int, err error) {
	return 0, errors.New("the runner cannot be the first process on this system")
}
