package process

import "os"

// self is a path that leads to the file of this program, also after its name was removed or
// given to another file.
const self = "/proc/self/exe"

// programOf returns a function that returns the path by which to start the program at path.
// If path is the file of this program, and an upgrade replaces the file, the function returns
// a path of the old file.
func programOf(path string) func() string {
	was, err := os.Stat(path)
	own, ownErr := os.Stat(self)
	if err != nil || ownErr != nil || !os.SameFile(was, own) {
		return func() string { return path }
	}
	return func() string {
		if is, err := os.Stat(path); err == nil && os.SameFile(is, was) {
			return path
		}
		return self
	}
}
