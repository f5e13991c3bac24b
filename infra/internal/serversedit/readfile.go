package serversedit

import (
	"fmt"
	"io"
	"os"
)

// ReadFile reads a file that may come from others. It fails if the file is longer than limit, in bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s is larger than %d MiB", path, limit>>20)
	}
	return text, err
}
