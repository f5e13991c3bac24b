package local

import (
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/apigw"
	"github.com/dormouse-mcp/dormouse/infra/local/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// Usage is what the emulator itself counts, since Run began: what a [Bill] is made of,
// but for the store.
type Usage struct {
	Since, Until time.Time
	REST         apigw.RESTUsage // the API of HTTP clients
	Relay        sockets.Usage   // the API of runners
	Socket       sockets.Usage   // the API of WebSocket clients
	Functions    []lambda.FunctionUsage
	Events       lambda.EventUsage
	Boxes        map[string]BoxUsage // by server
}

// BoxUsage is the boxes of one server, as Fargate bills tasks.
type BoxUsage struct {
	Tasks int64
	// Time of all tasks together, also of the running ones: each rounded up to a
	// second, a minute at least.
	Time time.Duration
}

func (m *machine) usage(ctx context.Context) (Usage, error) {
	tasks, err := m.boxes.Tasks(ctx)
	if err != nil {
		return Usage{}, err
	}
	now := time.Now()
	u := m.counters(now)
	u.Boxes = m.tasks.usage(tasks, now)
	return u, nil
}

// counters is usage without boxes.
func (m *machine) counters(now time.Time) Usage {
	u := Usage{Since: m.began, Until: now, Relay: m.relay.Usage(), Socket: m.socket.Usage()}
	m.functions.count(&u)
	return u
}

// taskMeter adds up tasks that have stopped. The zero value is one that has seen
// none.
type taskMeter struct {
	mu      sync.Mutex
	stopped map[string]BoxUsage
}

// leastTask is the shortest time that Fargate bills.
const leastTask = time.Minute

func (u BoxUsage) and(t fleet.Status, until time.Time) BoxUsage {
	span := max(until.Sub(t.Started)+time.Second-1, leastTask).Truncate(time.Second)
	return BoxUsage{Tasks: u.Tasks + 1, Time: u.Time + span}
}

func (m *taskMeter) add(t fleet.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped == nil {
		m.stopped = map[string]BoxUsage{}
	}
	m.stopped[t.Server] = m.stopped[t.Server].and(t, t.Stopped)
}

// usage is what has stopped and what of tasks still runs.
func (m *taskMeter) usage(tasks []fleet.Status, now time.Time) map[string]BoxUsage {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]BoxUsage{}
	for server, u := range m.stopped {
		all[server] = u
	}
	for _, t := range tasks {
		if t.State != fleet.Stopped {
			all[t.Server] = all[t.Server].and(t, now)
		}
	}
	return all
}
