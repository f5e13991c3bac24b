//go:build !linux

package runner

import "errors"

// supervise fails: the first process of a container exists only on Linux.
func supervise(string, []string, []string) (code int, err error) {
	return 0, errors.New("the runner cannot be the first process on this system")
}
