package runner

import (
	"log/slog"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// starts measures how long processes take from their start to the end of their handshake.
type starts struct {
	server  string
	metrics string // namespace of the metrics, "" for no metrics
	log     *slog.Logger

	mu    sync.Mutex
	since map[string]time.Time // when a process was started that is not ready yet, by its name
}

func newStarts(server string, metrics string, log *slog.Logger) *starts {
	return &starts{server: server, metrics: metrics, log: log, since: map[string]time.Time{}}
}

// seen records a state of a process, and logs how long the start took when the process is ready.
func (s *starts) seen(p box.ProcessStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun, known := s.since[p.Process]
	switch p.State {
	case box.Staging:
	case box.Started:
		s.since[p.Process] = time.Now()
	case box.Ready:
		if known {
			attrs := []any{"process", p.Process, "session_id", p.Session}
			s.log.Info("server started", append(attrs, meter.Started(s.server, time.Since(begun), s.metrics)...)...)
		}
		delete(s.since, p.Process)
	case box.Stopped, box.Exited:
		delete(s.since, p.Process)
	}
}
