package proc

import (
	"runtime"
	"sync"
)

// spares lets a Go runtime that uses one CPU use a second one while processes start, because a
// start would block all goroutines for a millisecond or more.
var spares spare

type spare struct {
	mu       sync.Mutex
	starting int
	added    bool // GOMAXPROCS was raised
}

// take raises GOMAXPROCS from 1 to 2 until every caller has called release.
func (s *spare) take() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting++; s.starting == 1 && runtime.GOMAXPROCS(0) == 1 {
		s.added = true
		runtime.GOMAXPROCS(2)
	}
	return s.give
}

func (s *spare) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting--; s.starting == 0 && s.added {
		s.added = false
		runtime.GOMAXPROCS(1)
	}
}
