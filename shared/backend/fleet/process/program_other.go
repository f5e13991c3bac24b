//go:build !linux

package process

// programOf returns the function that gives the path by which a program is to be started.
func programOf(path string) func() string { return func() string { return path } }
