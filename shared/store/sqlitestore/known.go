package sqlitestore

import "sync"

// known caches decoded records by their bytes. Every message reads the records of its
// session and its box, which seldom change. Callers share the values it returns and
// must not change what they point to. It is safe for concurrent use; the zero value
// is ready.
type known[T any] struct {
	mu   sync.Mutex
	said map[string]T
}

// maxKnown is how many records known holds. It does not hold records over
// maxKnownSize bytes.
const (
	maxKnown     = 256
	maxKnownSize = 4 << 10
)

// of returns the decoded record, from the cache or else by read.
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
