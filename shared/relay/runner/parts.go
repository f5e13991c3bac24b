package runner

import (
	"slices"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// window is how many parts of one frame are under way at a time: each is an
// invocation of the relay function.
const window = 8

// wholes is how often whole is sent before the parts are sent anew: the host may
// have let them expire.
const wholes = 3

// transfer is a long frame on its way: its parts, each until part-ok, then whole.
// It is of no connection: parts the host has stay there.
type transfer struct {
	data       []byte // until it has a place
	place      int
	name       string // "" while it waits for a place
	parts      [][]byte
	state      []partState
	missing    int // parts without part-ok
	joins      int // how often whole was sent
	unanswered bool
	again      alarm
}

type partState byte

const (
	partWaits partState = iota
	partSent
	partTaken
)

// transfer begins a long frame whose answer drops it.
func (l *life) transfer(data []byte) *transfer {
	t := &transfer{data: data}
	if len(l.transfers) == frame.MaxTransfers {
		l.lining = append(l.lining, t)
	} else {
		l.admit(t)
	}
	return t
}

// admit gives a long frame a place and a name, and cuts it. Who runs the box, and
// in which generation, is in each part, since each is stored by itself.
func (l *life) admit(t *transfer) {
	var taken [frame.MaxTransfers]bool
	for _, other := range l.transfers {
		taken[other.place] = true
	}
	t.place = slices.Index(taken[:], false)
	t.name = strconv.Itoa(t.place) + "." + session.NewNonce()
	t.parts = frame.CutAs(t.data, frame.Frame{Box: l.Box, Gen: l.gen, Runner: l.runner, Frame: t.name})
	t.data = nil
	t.restart()
	l.transfers[t.name] = t
}

// transferKept sends a long frame that has no answer: once its parts have been
// taken, whole is sent once.
func (l *life) transferKept(data []byte) {
	t := l.transfer(data)
	t.unanswered = true
	l.sendParts(t)
}

func (t *transfer) restart() {
	t.state, t.missing, t.joins = make([]partState, len(t.parts)), len(t.parts), 0
}

// sendParts sends, for the first time or again, what the host has not taken.
func (l *life) sendParts(t *transfer) {
	if !l.linked() || t.name == "" {
		return // resumeOutboxes, or dropTransfer
	}
	if t.joins == wholes {
		t.restart()
	}
	for i, s := range t.state {
		if s == partSent {
			t.state[i] = partWaits
		}
	}
	l.fillWindow(t)
	l.watchParts(t)
}

// watchParts repeats what gets no answer, counted from the last one.
func (l *life) watchParts(t *transfer) {
	if l.transfers[t.name] == t {
		l.againIfFree(&t.again, func() { l.sendParts(t) })
	}
}

// fillWindow sends the next parts, or whole when all have been taken.
func (l *life) fillWindow(t *transfer) {
	if t.missing == 0 {
		l.join(t)
		return
	}
	if !l.linked() {
		return
	}
	sent := 0
	for i, s := range t.state {
		if s == partWaits && sent < window {
			t.state[i] = partSent
			s = partSent
			l.live.send(outgoing{data: t.parts[i]})
		}
		if s == partSent {
			sent++
		}
	}
}

func (l *life) join(t *transfer) {
	whole := frame.Encode(frame.Frame{Type: frame.Whole, Box: l.Box, Gen: l.gen, Runner: l.runner, Frame: t.name, Of: len(t.parts)})
	if t.unanswered {
		l.dropTransfer(t)
		l.sendKept(whole)
		return
	}
	if l.linked() {
		t.joins++
		l.live.send(outgoing{data: whole})
	}
}

func (l *life) partTaken(f frame.Frame) {
	t := l.transfers[f.Frame]
	if t == nil || f.N < 0 || f.N >= int64(len(t.state)) || t.state[f.N] == partTaken {
		return
	}
	t.state[f.N] = partTaken
	t.missing--
	l.fillWindow(t)
	l.watchParts(t)
}

// dropTransfer forgets a long frame that was answered, and begins the next that
// waits for its place. nil is no transfer.
func (l *life) dropTransfer(t *transfer) {
	if t == nil {
		return
	}
	t.again.stop()
	delete(l.transfers, t.name)
	if len(l.lining) > 0 && len(l.transfers) < frame.MaxTransfers {
		next := l.lining[0]
		l.lining[0] = nil
		l.lining = l.lining[1:]
		l.admit(next)
		l.sendParts(next)
	}
}
