package runner

import (
	"maps"
	"slices"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// window is how many parts of one frame are sent before their answers come.
const window = 8

// wholes is how often [frame.Whole] is sent before all parts are sent anew, because the parts that
// the host has stored may have expired.
const wholes = 3

// transfer is a long frame that is sent in parts. Each part is repeated until its [frame.PartOK]
// comes; the last frame is [frame.Whole]. A transfer goes on over several connections, because the
// host keeps the parts.
type transfer struct {
	place      int         // 0 to frame.MaxTransfers-1; no two active transfers have the same place
	name       string      // its place and a nonce; "" while it waits for a place
	pieces     [][]byte    // the payloads of the parts
	state      []partState // the state of each part
	missing    int         // how many parts the host has not confirmed
	joins      int         // how often frame.Whole was sent since the last call of restart
	unanswered bool        // the host sends no answer to this frame; see transferKept
	again      alarm
}

type partState byte

const (
	partWaits partState = iota
	partSent
	partTaken
)

// transfers are the frames that are being sent in parts.
type transfers struct {
	links *links

	byName  map[string]*transfer // the transfers that have a place; see transfer.place
	waiting []*transfer          // the transfers that wait for a place
}

// transfer prepares a long frame, which is the concatenation of the arguments. The caller must call
// dropTransfer when the answer to the frame comes.
func (ts *transfers) transfer(data ...[]byte) *transfer {
	t := &transfer{pieces: frame.Pieces(data...)}
	if len(ts.byName) == frame.MaxTransfers {
		ts.waiting = append(ts.waiting, t)
	} else {
		ts.admit(t)
	}
	return t
}

// admit gives a long frame a name and one of the frame.MaxTransfers places.
func (ts *transfers) admit(t *transfer) {
	var taken [frame.MaxTransfers]bool
	for _, other := range ts.byName {
		taken[other.place] = true
	}
	t.place = slices.Index(taken[:], false)
	t.name = strconv.Itoa(t.place) + "." + storage.NewNonce()
	t.restart()
	ts.byName[t.name] = t
}

// transferKept sends a long frame that gets no answer.
func (ts *transfers) transferKept(data []byte) {
	t := ts.transfer(data)
	t.unanswered = true
	ts.sendParts(t)
}

func (t *transfer) restart() {
	t.state, t.missing, t.joins = make([]partState, len(t.pieces)), len(t.pieces), 0
}

// sendParts sends all parts that the host has not confirmed.
func (ts *transfers) sendParts(t *transfer) {
	if !ts.links.linked() || t.name == "" {
		return // resumeTransfers, resumeOutboxes or dropTransfer calls sendParts later
	}
	if t.joins == wholes {
		t.restart()
	}
	for i, s := range t.state {
		if s == partSent {
			t.state[i] = partWaits
		}
	}
	ts.fillWindow(t)
	ts.watchParts(t)
}

// watchParts calls sendParts again if the host has not answered after ackAfter.
func (ts *transfers) watchParts(t *transfer) {
	if ts.byName[t.name] == t {
		ts.links.againIfFree(&t.again, func() { ts.sendParts(t) })
	}
}

// fillWindow sends the next parts, or [frame.Whole] if the host has all parts.
func (ts *transfers) fillWindow(t *transfer) {
	if t.missing == 0 {
		ts.join(t)
		return
	}
	if !ts.links.linked() {
		return
	}
	sent := 0
	for i, s := range t.state {
		if s == partWaits && sent < window {
			t.state[i] = partSent
			s = partSent
			ts.links.live.send(outgoing{data: ts.part(t, i)})
		}
		if s == partSent {
			sent++
		}
	}
}

func (ts *transfers) part(t *transfer, n int) []byte {
	return frame.Encode(frame.Part{Sender: ts.links.sender(), Frame: t.name, N: int64(n), Of: len(t.pieces), Payload: t.pieces[n]})
}

func (ts *transfers) join(t *transfer) {
	whole := frame.Encode(frame.Whole{Sender: ts.links.sender(), Frame: t.name, Of: len(t.pieces)})
	if t.unanswered {
		ts.dropTransfer(t)
		ts.links.sendKept(whole)
		return
	}
	if ts.links.linked() {
		t.joins++
		ts.links.live.send(outgoing{data: whole})
	}
}

func (ts *transfers) partTaken(f frame.PartOK) {
	t := ts.byName[f.Frame]
	if t == nil || f.N < 0 || f.N >= int64(len(t.state)) || t.state[f.N] == partTaken {
		return
	}
	t.state[f.N] = partTaken
	t.missing--
	ts.fillWindow(t)
	ts.watchParts(t)
}

// dropTransfer forgets a long frame, and begins the next frame that waits for a place. A nil
// transfer is ignored.
func (ts *transfers) dropTransfer(t *transfer) {
	if t == nil {
		return
	}
	t.again.stop()
	delete(ts.byName, t.name)
	if len(ts.waiting) > 0 && len(ts.byName) < frame.MaxTransfers {
		next := ts.waiting[0]
		ts.waiting[0] = nil
		ts.waiting = ts.waiting[1:]
		ts.admit(next)
		ts.sendParts(next)
	}
}

// resumeTransfers continues, over a new connection, to send the frames to which the host
// sends no answer.
func (ts *transfers) resumeTransfers() {
	for _, name := range slices.Sorted(maps.Keys(ts.byName)) {
		if t := ts.byName[name]; t.unanswered {
			ts.sendParts(t)
		}
	}
}

// sendSmall sends a frame to which the host sends no answer.
func (ts *transfers) sendSmall(f frame.Frame) {
	data := frame.Encode(f)
	if len(data) > frame.MaxFrame {
		ts.transferKept(data)
		return
	}
	ts.links.live.sendFirst(data)
}
