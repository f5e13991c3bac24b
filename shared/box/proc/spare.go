package proc

import (
	"runtime"
	"sync"
)

// spares gives a Go runtime that has one processor a second one while processes start. The
// start of a process holds its processor until the program is executed, for a millisecond
// or more.
var spares spare

type spare struct {
	mu       sync.Mutex
	starting int
	added    bool // the runtime has the second processor
}

// take adds the processor, until the last caller has called release.
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
