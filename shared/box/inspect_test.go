package box

import (
	"cmp"
	"maps"
	"slices"
)

// Open lists the streams of requests in flight, in the order in which they began.
func (b *Box) Open() []*stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*stream
	for _, s := range b.sessions {
		all = append(all, inflight(b.processes(s), s)...)
	}
	slices.SortFunc(all, func(x, y *stream) int { return cmp.Or(x.came.Compare(y.came), cmp.Compare(x.id, y.id)) })
	return all
}

// Processes lists the running processes by name, with those that are being stopped.
func (b *Box) Processes() []ProcessStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []ProcessStatus
	for _, id := range slices.Sorted(maps.Keys(b.groups)) {
		for _, p := range b.groups[id].live {
			if p.child != nil {
				all = append(all, p.status(p.running(), nil))
			}
		}
	}
	return all
}

func (b *Box) Counts() dropped {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts
}
