//go:build !linux

package process

// programOf returns a function that returns the path by which to start the program at path.
func programOf(path string) func() string { return func() string { return path } }
