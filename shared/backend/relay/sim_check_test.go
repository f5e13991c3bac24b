package relay_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// simStream is one stream of the log at the end of a world.
type simStream struct {
	session storage.ID
	id      storage.StreamID
	batches []storage.Batch
	events  []storage.Event
}

// check checks the promises that can be judged only at the end. Others are checked while
// the world runs: executed once and in the right session (ledger), seen once and in order
// (clients), connections renewed in time (gateway).
func (w *world) check() {
	w.ledger.mu.Lock()
	log := w.log() // what processes said before comes first for the race detector too
	w.ledger.mu.Unlock()
	for _, s := range log {
		w.checkIndexes(s)
		w.checkEvents(s)
		w.checkEnd(s)
	}
	w.checkFull()
	w.checkSpoken(log)
	w.checkInvitations(log)
	for _, c := range w.clients {
		w.checkClient(c, log)
	}
	for _, s := range w.sockets {
		s.check(log)
	}
}

// checkFull checks that no box counts as full that is asleep. A fault may leave such a bit.
func (w *world) checkFull() {
	for _, id := range w.boxes() {
		if b, err := w.memory.Box(w.ctx, id); err != nil || b.Full != 0 && w.none() {
			w.breaks("boxes %b of %s are asleep and full (%v)", b.Full, id, err)
		}
	}
}

type simStreamKey struct {
	session storage.ID
	stream  storage.StreamID
}

func (w *world) log() map[simStreamKey]*simStream {
	log := map[simStreamKey]*simStream{}
	for _, b := range w.memory.Batches() {
		key := simStreamKey{b.Session, b.Stream}
		if log[key] == nil {
			log[key] = &simStream{session: b.Session, id: b.Stream}
		}
		s := log[key]
		s.batches = append(s.batches, b)
		for i, raw := range b.Events {
			s.events = append(s.events, storage.Event{
				Index: b.First + storage.Index(i), Raw: raw, Final: b.Final && i == len(b.Events)-1,
			})
		}
	}
	return log
}

func (w *world) title(s *simStream) string {
	return fmt.Sprintf("stream %s of %s", w.name(s.id), w.ledger.owner(s.session))
}

// checkIndexes checks that indexes go from 1 to n without a hole, that no batch comes
// twice and that nothing follows the end. On the standalone stream, nothing of an older
// generation may follow a newer one.
func (w *world) checkIndexes(s *simStream) {
	next := storage.Index(1)
	type batch struct {
		gen storage.Generation
		seq int64
	}
	written := map[batch]bool{}
	for i, b := range s.batches {
		w.breaksIf(b.First != next, "%s has a batch at %d, expected at %d", w.title(s), b.First, next)
		next = b.First + storage.Index(len(b.Events))
		w.breaksIf(written[batch{b.Gen, b.Seq}], "%s has batch %d of generation %d twice", w.title(s), b.Seq, b.Gen)
		written[batch{b.Gen, b.Seq}] = true
		w.breaksIf(b.Final && (i != len(s.batches)-1 || s.id == storage.Standalone), "%s goes on after its end at %d", w.title(s), next-1)
		if i > 0 && s.id == storage.Standalone && b.Gen < s.batches[i-1].Gen {
			w.breaks("%s has events of generation %d after those of %d", w.title(s), b.Gen, s.batches[i-1].Gen)
		}
	}
}

// checkEvents checks that every event comes from a box's ledger, for this session and
// stream, in this order. A request stream has events of one process only. The relay
// itself writes only ends of requests.
func (w *world) checkEvents(s *simStream) {
	said := map[string]int{} // how far, by process
	for _, e := range s.events {
		by := byOf(e.Raw)
		if by == "" {
			w.breaksIf(s.id == storage.Standalone || !isError(e.Raw), "%s has an event that nobody said: %s", w.title(s), e.Raw)
			continue
		}
		spoken := w.ledger.spoken[s.session][speaker{s.id, by}]
		if n := said[by]; n >= len(spoken) || spoken[n].raw != string(e.Raw) {
			w.breaks("%s has at %d what %s did not say next: %.200s", w.title(s), e.Index, by, e.Raw)
			return
		}
		said[by]++
	}
	w.breaksIf(s.id != storage.Standalone && len(said) > 1 && !w.asks(), "%s was written by %d processes", w.title(s), len(said))
}

// checkEnd checks that a stream has one end, that each request has one response, and that no question
// is asked twice.
func (w *world) checkEnd(s *simStream) {
	w.breaksIf(s.id != storage.Standalone && !s.events[len(s.events)-1].Final, "%s has no end", w.title(s))
	seen := map[wire.Kind]map[string]bool{wire.Response: {}, wire.Request: {}}
	for _, e := range s.events {
		m, err := wire.Parse(e.Raw)
		if err != nil || seen[m.Kind] == nil {
			continue
		}
		w.breaksIf(seen[m.Kind][string(m.ID)], "%s has two responses to %s, or asks it twice", w.title(s), m.ID)
		seen[m.Kind][string(m.ID)] = true
	}
}

// checkSpoken checks that the log has every event of each box that fell asleep by itself.
func (w *world) checkSpoken(log map[simStreamKey]*simStream) {
	slept := map[string]bool{}
	for _, p := range w.fleet.procs {
		slept[p.name] = p.slept
	}
	for id, speakers := range w.ledger.spoken {
		for who, spoken := range speakers {
			if !slept[who.by] || w.ledger.closed.has(who.stream) {
				continue
			}
			due := 0
			for i, u := range spoken {
				if u.due {
					due = i + 1
				}
			}
			arrived := 0
			if s := log[simStreamKey{id, who.stream}]; s != nil {
				for _, e := range s.events {
					if byOf(e.Raw) == who.by {
						arrived++
					}
				}
			}
			if arrived < due {
				w.breaks("%s fell asleep, and of the %d events it said in %s of %s only %d are stored",
					who.by, due, w.name(who.stream), w.ledger.owner(id), arrived)
			}
		}
	}
}

func (w *world) checkClient(c *simClient, log map[simStreamKey]*simStream) {
	for _, r := range c.requests {
		w.breaksIf(w.none() && !r.accepted && !r.late, "%s was not accepted though nothing went wrong: %v", r.label, r.broken)
		if r.stream == "" {
			continue // the request was never sent to a box, or the host answered it itself
		}
		w.checkRequest(r, log)
	}
	common := log[simStreamKey{c.id, storage.Standalone}]
	if common != nil && c.hears && !w.ledger.ended.has(c.name) && c.heard != storage.Index(len(common.events)) {
		w.breaks("the listener of %s heard %d of %d events", c.name, c.heard, len(common.events))
	}
}

// checkRequest checks that an accepted request has ended. Its client must have seen all
// events, unless the client could not know its stream.
func (w *world) checkRequest(r *simRequest, log map[simStreamKey]*simStream) {
	var s *simStream
	for key := range log {
		if key.stream == r.stream {
			s = log[key]
		}
	}
	if s == nil {
		w.breaksIf(r.accepted, "%s was accepted and has no events", r.label)
		return
	}
	if owner := w.ledger.owner(s.session); owner != r.c.name {
		w.breaks("events of %s are in a session of %s", r.label, owner)
	}
	var responses, ids []string
	for _, e := range s.events {
		if m, err := wire.Parse(e.Raw); err == nil && m.Kind == wire.Response {
			responses = append(responses, string(m.ID))
			w.breaksIf(w.none() && !r.late && m.Error != nil, "%s ended in an error though nothing went wrong: %s", r.label, e.Raw)
		}
	}
	for _, id := range r.ids {
		ids = append(ids, string(id))
	}
	slices.Sort(responses)
	slices.Sort(ids)
	w.breaksIf(r.accepted && !slices.Equal(responses, ids), "%s has requests %v and responses %v", r.label, ids, responses)
	w.breaksIf(r.last != "" && !r.done && !w.ledger.ended.has(r.c.name) && !isInit(r.label), "the client of %s never saw its end", r.label)
	for i, e := range r.seen {
		if i >= len(s.events) || string(s.events[i].Raw) != string(e.Raw) {
			w.breaks("the client of %s saw at %d what is not in the log: %.200s", r.label, e.Index, e.Raw)
		}
	}
	if e, ok := w.ledger.executed(r.label); ok && w.none() && e.at.Sub(r.begun) > simPatience {
		w.breaks("%s was executed only after %s though nothing went wrong", r.label, e.at.Sub(r.begun))
	}
}

// simPatience is how long a message may take to reach a box if nothing goes wrong: a
// start, and some steps that take seconds.
const simPatience = 40 * time.Second

// byOf returns the process that sent an event, "" for an event of the relay.
func byOf(raw []byte) string {
	for _, path := range [][]string{{"params", "by"}, {"result", "by"}, {"error", "data", "by"}} {
		if by, ok := wire.String(wire.Lookup(raw, path...)); ok {
			return by
		}
	}
	return ""
}
