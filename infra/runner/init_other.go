//go:build !linux

package runner

import "errors"

// supervise is for the first process of a container, which is Linux.
func supervise(string, []string, []string) (code int, err error) {
	return 0, errors.New("the runner cannot be the first process on this system")
}
