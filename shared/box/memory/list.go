package memory

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
)

// Sleeper is a process that sleeps with its memory.
type Sleeper struct {
	Box, Process string
	Saved        time.Time
	Size         int64 // size of the image in bytes
}

// Sleepers returns the processes whose memory is stored in f, without images that cannot be read
// or are too old.
func Sleepers(f *snapshot.Folder) []Sleeper {
	var all []Sleeper
	for _, path := range f.ImageFiles() {
		if s, ok := sleeper(path); ok {
			all = append(all, s)
		}
	}
	return all
}

// Forget deletes the stored memory of a box's process, or of all its processes if process is "".
// Forget reports whether there was any.
func Forget(f *snapshot.Folder, box, process string) (forgot bool, err error) {
	for _, path := range f.ImageFiles() {
		if s, ok := sleeper(path); ok && s.Box == box && (process == "" || s.Process == process) {
			forgot, err = true, errors.Join(err, f.ForgetImage(path))
		}
	}
	return forgot, err
}

func sleeper(path string) (s Sleeper, ok bool) {
	file, err := os.Open(path)
	if err != nil {
		return s, false
	}
	defer func() { _ = file.Close() }() // nothing was written
	info, err := file.Stat()
	if err != nil {
		return s, false
	}
	h, _, err := readHeader(file)
	return Sleeper{h.Box, h.Process, h.Saved, info.Size()}, err == nil && time.Since(h.Saved) < MaxAge
}

// Says returns a text for operators about a stored image of size bytes.
func Says(size int64) string {
	return fmt.Sprintf("its memory is kept: %d MB", (size+1<<20-1)>>20)
}
