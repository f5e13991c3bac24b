package relay_test

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// ledger records what really happened in a world, even if no single actor knows it.
type ledger struct {
	mu     sync.Mutex
	owners map[storage.ID]string       // the client of each session
	ended  set[string]                 // clients that have ended their session
	labels map[storage.StreamID]string // of the first message of a delivery
	byID   map[simRound]string         // which process executed a delivery
	runs   map[string]execution        // by label of the message
	spoken map[storage.ID]map[speaker][]utterance
	closed set[storage.StreamID] // CloseStream was said
	open   set[storage.StreamID] // the stream is in a batch that no relay function has handled completely
	told   set[storage.StreamID] // the client was told that the request will not be executed any more
}

// set is safe for concurrent use.
type set[K comparable] struct{ m sync.Map }

func (s *set[K]) add(k K)          { s.put(k, true) }
func (s *set[K]) put(k K, in bool) { s.m.Store(k, in) }

func (s *set[K]) has(k K) bool {
	in, ok := s.m.Load(k)
	return ok && in.(bool)
}

// simRound is one round of a delivery.
type simRound struct {
	id    storage.StreamID
	round int
}

type execution struct {
	by string
	at time.Time
}

// speaker is one process in one stream.
type speaker struct {
	stream storage.StreamID
	by     string
}

// utterance is one event of a box.
type utterance struct {
	by, raw string
	due     bool // the event was sent while a request was in flight, so the box could not fall asleep before the event was stored
}

// owns records which client a session belongs to. That never changes.
func (l *ledger) owns(w *world, id storage.ID, client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.owners[id]; ok && old != client {
		w.breaks("a session of %s is told to be one of %s", old, client)
	}
	l.owners[id] = client
}

func (l *ledger) owner(id storage.ID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if client, ok := l.owners[id]; ok {
		return client
	}
	return "session?"
}

// learns records the label of a delivery, for the log of the world.
func (l *ledger) learns(id storage.StreamID, raw []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if label := labelOf(raw); label != "" {
		l.labels[id] = label
	}
}

func (l *ledger) label(id storage.StreamID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if label, ok := l.labels[id]; ok {
		return label
	}
	return "?" + string(id)
}

// executes records the execution of a delivery. It checks that the delivery was not
// executed before, and that it is in a session of its own client.
func (l *ledger) executes(w *world, by, client string, d frame.Deliver, msgs []wire.Message) {
	w.tell(by, "EXECUTES %s, round %d", labelOf(d.Raw), d.Round)
	l.learns(d.ID, d.Raw)
	l.mu.Lock()
	defer l.mu.Unlock()
	round := simRound{d.ID, d.Round}
	if old, ok := l.byID[round]; ok {
		w.breaks("delivery %s executed twice in round %d, by %s and by %s", labelOf(d.Raw), d.Round, old, by)
	}
	l.byID[round] = by
	w.breaksIf(l.told.has(d.ID), "delivery %s is executed by %s after its client was told that it would not be", labelOf(d.Raw), by)
	for _, m := range msgs {
		label := labelOf(m.Raw)
		if d.Round > 0 {
			label = fmt.Sprintf("%s#%d", label, d.Round)
		}
		if old, ok := l.runs[label]; ok && (old.by != by || isKeyed(label)) {
			w.breaks("message %s executed twice, by %s and by %s", label, old.by, by)
		}
		w.breaksIf(!strings.HasPrefix(label, client+"."), "message %s executed in a session of %s", label, client)
		l.runs[label] = execution{by, time.Now()}
	}
}

func (l *ledger) executed(label string) (execution, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.runs[label]
	return e, ok
}

func (l *ledger) says(id storage.ID, stream storage.StreamID, u utterance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spoken[id] == nil {
		l.spoken[id] = map[speaker][]utterance{}
	}
	key := speaker{stream, u.by}
	l.spoken[id][key] = append(l.spoken[id][key], u)
}

// handles records that a relay function begins to handle a frame, or has handled it.
func (l *ledger) handles(message []byte, done bool) {
	f, err := frametest.Decode(message)
	if err != nil {
		return
	}
	for _, it := range f.Items {
		l.open.put(it.Stream, !done)
	}
}
