package process

import "os"

// self is a path that leads to the file of this program, also after its name was removed or
// given to another file.
const self = "/proc/self/exe"

// programOf returns the function that gives the path by which a program is to be started.
// That is path, as long as it names what it named when programOf was called. A newer file
// of this program's own name, as an upgrade leaves, is not started beside an older host:
// both speak the version of the host.
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
