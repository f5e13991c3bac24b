package sqlitestore

import "sync"

// known remembers what records said, by their bytes: every message reads that of its
// session and that of its box, and they change seldom. What it returns is shared with
// everybody who reads the same record. Safe for concurrent use; the zero value is
// ready.
type known[T any] struct {
	mu   sync.Mutex
	said map[string]T
}

// maxKnown bounds how many records are remembered, and maxKnownSize of how many bytes
// each is at most.
const (
	maxKnown     = 256
	maxKnownSize = 4 << 10
)

// of is what a record says, by memory or else by read.
func (k *known[T]) of(record []byte, read func(record []byte) (T, error)) (T, error) {
	k.mu.Lock()
	v, ok := k.said[string(record)]
	k.mu.Unlock()
	if ok {
		return v, nil
	}
	v, err := read(record)
	if err != nil || len(record) > maxKnownSize {
		return v, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.said == nil || len(k.said) >= maxKnown {
		k.said = map[string]T{}
	}
	k.said[string(record)] = v
	return v, nil
}
