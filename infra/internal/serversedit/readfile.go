package serversedit

import (
	"fmt"
	"io"
	"os"
)

// ReadFile reads a file that others may have made. It reads no further than most bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d MiB", path, most>>20)
	}
	return text, err
}
