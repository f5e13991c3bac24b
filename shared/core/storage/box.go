package storage

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BoxID names a box: processes of one server for one tenant. It is computed, so that Load
// can read a session and its box in one round trip.
//
// # Several boxes of one server
//
// A tenant may have up to [MaxBoxes] boxes of a server, numbered from 0. A session is put
// into a box when it is opened, and stays there for life. Its ID ends with the number of the
// box ([ID.In]), so every part of the program knows the box without a read. A box shares
// nothing with the others: it has its own record, generations, items and handshake record.
//
// The record of box 0 also says which boxes are full ([Box.Full]). A runner that starts the last
// process it may run reports that its box is full. The bit is cleared when that box falls asleep. A new
// session goes into one of the boxes in use that are not full, by rendezvous hashing of its ID
// ([Box.Choose]). If all boxes in use are full, it goes into the next box. The number of boxes in use
// never exceeds the number that the caller allows. When all of the allowed boxes are full, a new
// session goes into any of them.
//
// Box 0 has the sessions with computed IDs: those of modern clients, and those that a group has
// with its members. It also has the sessions of servers whose sessions share a process or a
// snapshot. An ID without a number is an ID of box 0. An older release looks for each session in
// box 0; see docs/releases.md.
type BoxID string

// MaxBoxes is the largest number of boxes of one tenant and server.
const MaxBoxes = 32

// BoxFor returns the ID of box 0 of a tenant and a server.
func BoxFor(tenant, server string) BoxID { return BoxID(tenant + "/" + server) }

// Numbered returns the ID of box n of the same tenant and server. Call it on the ID of box 0.
func (id BoxID) Numbered(n int) BoxID {
	if n == 0 {
		return id
	}
	return BoxID(string(id) + boxSign + strconv.Itoa(n))
}

// boxSign begins the number in the ID of a box. Names of servers do not contain it.
const boxSign = "@"

// First returns the ID of box 0 of the same tenant and server, and the number of this box.
func (id BoxID) First() (BoxID, int) {
	first, number, _ := cutLast(string(id), boxSign)
	if n := boxNumber(number); n > 0 {
		return BoxID(first), n
	}
	return id, 0
}

// boxNumber returns the number that Numbered and ID.In have written, 0 for another text.
func boxNumber(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n >= MaxBoxes || text != strconv.Itoa(n) {
		return 0
	}
	return n
}

// cutLast is [strings.Cut] at the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Parts returns the tenant and the server of a box.
func (id BoxID) Parts() (tenant, server string) {
	id, _ = id.First()
	tenant, server, found := cutLast(string(id), "/")
	if !found {
		return "", string(id)
	}
	return tenant, server
}

// BoxState is whether a box is up.
type BoxState string

// The states of a box. The zero Box is asleep at generation 0.
const (
	Asleep   BoxState = ""
	Starting BoxState = "starting"
	Awake    BoxState = "awake"
)

// Box is the record of one box; see [BoxID]. Every change is a compare-and-swap on Rev.
type Box struct {
	ID     BoxID
	Rev    int64 // set by the store; SaveBox fails unless it is the stored one
	Tenant string
	Server string
	State  BoxState
	// Gen goes up by one when an instance takes the lease to wake the box, even if another had it.
	// Gen also goes up when a runner connects again after its bye.
	Gen Generation
	// Lost is the highest generation whose runner ended without a bye, its announcement of the end.
	Lost Generation
	// Worked is the highest generation whose processes did, or may have done, more than answer
	// requests for lists.
	Worked Generation `json:",omitempty"`
	Told   Told       `json:",omitzero"`
	// Code is the digest of the server's definition with which the box was last woken, "" if that
	// is not known.
	Code string `json:",omitempty"`
	// Relisted is when a new process last listed other tools, prompts or resources than the stored
	// [Handshake] parts.
	Relisted time.Time `json:",omitzero"`
	Runner   string    // random id of the runner; kept after its bye
	Task     string    // how the fleet, which starts runners, calls this one
	Conn     string    // WebSocket connection of the runner, only while Awake
	Link     int64     // how many connections the runner has opened, by its own count

	// These four fields are set only while State is Starting.
	Owner     string    // the instance that holds the lease to wake the box
	Until     time.Time // the end of that lease
	Attempt   int       // the number of the attempt to start
	TokenHash string    // hash of the one-time token with which the runner must connect

	Failure Failure // why the box was last lost, or why its last start failed
	// Era is the protocol that the server speaks, "" if that is not known yet. The next
	// runner tries it first.
	Era     string `json:",omitempty"`
	Changed time.Time
	// Place says where the box was last started, such as "ecs" or "lambda"; "" if the fleet has only
	// one place.
	Place string `json:",omitempty"`
	// Began is when a new runner last connected. Busy is how long a runner has work before it is idle
	// and ends: a mean of about the last ten runners.
	Began time.Time     `json:",omitzero"`
	Busy  time.Duration `json:",omitempty"`
	// Installed is the digest of the server definition whose packages were last installed and kept,
	// or were in the runner's image; "" for none. A start with this definition installs nothing.
	Installed string `json:",omitempty"`
	// Gone is when Conn was first found closed. The next hello of a runner clears it. Only a fleet that
	// cannot list its tasks needs it.
	Gone time.Time `json:",omitzero"`
	// Full has bit n set if box n of the tenant and server has reported since it was last woken that it
	// is full. Only the record of box 0 has it.
	Full  uint32 `json:",omitempty"`
	Later Later  `json:"-"`
}

// Choose returns the number of the box for a new session with this ID. b is the record of box
// 0. The result is below most, which is clamped to 1 to MaxBoxes.
func (b Box) Choose(id ID, most int) int {
	most = max(1, min(most, MaxBoxes))
	full := b.Full & (1<<most - 1)
	used := max(1, bits.Len32(full))
	switch {
	case bits.OnesCount32(full) == most:
		full = 0 // all boxes are full, so choose any
	case bits.OnesCount32(full) == used:
		used++
	}
	best, weight := 0, uint64(0)
	for n := range used {
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s %d", id, n)
		sum := h.Sum64()
		sum ^= sum >> 33 // boxes differ only in the last bytes of the text, and FNV spreads those badly
		sum *= 0xff51afd7ed558ccd
		sum ^= sum >> 33
		if full&(1<<n) == 0 && sum >= weight {
			best, weight = n, sum
		}
	}
	return best
}

// MarkFull returns b with the bit of box n in Full set or cleared. b is the record of box 0.
func (b Box) MarkFull(n int, full bool) Box {
	b.Full &^= 1 << n
	if full {
		b.Full |= 1 << n
	}
	return b
}

// Told has, for each kind of list, the highest generation in which a process sent list_changed. A
// list that a process gave in that generation or an earlier one may be out of date.
type Told struct {
	Tools, Prompts, Resources Generation `json:",omitempty"`
}

// Failure says why a box was lost or did not start.
type Failure struct {
	Phase  string // one of the error phases of package box
	Detail string // text that may be shown to a client
	// Advice is the end of Detail, behind a semicolon: what became of the request, or what the client
	// can do. It is "" if Detail has no such end, and in records of releases that do not know the field.
	Advice string `json:",omitempty"`
	Exit   int    // exit code of the runner, if it exited
	Signal string // the signal that killed it, if any
	// Unsent says that the request which the Failure ended was certainly not executed.
	Unsent bool `json:",omitempty"`
	At     time.Time
}

// Over reports whether generation g will never execute anything again. Once true, it
// stays true.
func (b Box) Over(g Generation) bool { return b.Gen > g || b.Gen == g && b.State == Asleep }

// Clean reports whether the runner of generation g announced its end. If so, a request that was sent to
// generation g and has no event in the log was not executed.
func (b Box) Clean(g Generation) bool { return b.Over(g) && g > b.Lost }

// ItemState is how far an [Item] has come.
type ItemState string

// The states of an item. If a server asks its client during a call (MCP 2026-07-28, "Multi
// Round-Trip Requests"), the item goes through rounds:
//
//	Waiting ──▶ Taken ──▶ Suspended ──▶ Waiting ──▶ Taken ──▶ ...
//	       claimed    asks         answered   claimed
//
// No process waits while a call is suspended. Each Suspended begins a round. A round is executed once:
// the instance that finds all questions answered makes the item Waiting with one SwapItem.
const (
	Waiting   ItemState = "waiting"   // no box has it yet
	Taken     ItemState = "taken"     // a box executes it, in the generation Gen
	Suspended ItemState = "suspended" // the client has not answered the questions yet
	Leftover  ItemState = "leftover"  // not a message: the session has ended, and the box must remove the session's files
)

// Item is the stored record of a message with requests, on its way to a box or executed there. While it
// exists, its box, or an instance that finds the box lost, must write the end of the message to the log:
// the last response, or an error.
type Item struct {
	Box      BoxID
	ID       StreamID
	State    ItemState
	Gen      Generation // of the box that took the item, while Taken or Suspended
	Round    int        // how often the item was Suspended
	Address  Address
	Raw      []byte    // the message; nil if the item was put as Taken
	NotAfter time.Time // after this time a Waiting item is not claimed, and a Suspended one ends
	Created  time.Time // when the item became Waiting or Suspended

	Questions []Question // while Suspended: what the client is asked
	Base      Index      // index of the event after which the call goes on; 0 for the start of the stream
}

// Question is something that a suspended call asks its client.
type Question struct {
	ID     string `json:"id"`           // the id under which the client knows the question; see QuestionID
	Key    string `json:"key"`          // the key in the server's inputRequests
	Method string `json:"method"`       // such as elicitation/create; "" if the server gets the client's whole response
	Of     int    `json:"of,omitempty"` // the position of the request that asks, if Item.Raw is a batch
}

// QuestionID returns the id of question n in a round of a stream. The id is unique.
func QuestionID(stream StreamID, round, n int) string {
	return string(stream) + "." + strconv.Itoa(round) + "." + strconv.Itoa(n)
}

// Suspends returns the stream and round in a question id that [QuestionID] has made. ok is false for
// other ids, which belong to questions whose answer a process waits for.
func Suspends(question string) (stream StreamID, round int, ok bool) {
	id, rest, _ := strings.Cut(question, ".")
	r, n, _ := strings.Cut(rest, ".")
	round, err := strconv.Atoi(r)
	if _, bad := strconv.Atoi(n); err != nil || bad != nil || StreamID(id).Time().IsZero() {
		return "", 0, false
	}
	return StreamID(id), round, true
}

// MaxForward bounds the name in an id that [ForwardID] makes, in bytes.
const MaxForward = 200

const forwards = "r-"

// ForwardID returns the id of a question from a server without a box, such as a remote one. The
// client's answer is forwarded to that server, and the store does not keep it. The name has at
// most [MaxForward] bytes.
func ForwardID(name string) string { return forwards + name }

// Forwards returns the name in an id that [ForwardID] made. ok is false for other ids.
func Forwards(question string) (name string, ok bool) {
	name, ok = strings.CutPrefix(question, forwards)
	return name, ok && len(name) <= MaxForward
}

// Asks reports whether the item is suspended for a question.
func (it Item) Asks(question string) bool {
	return it.State == Suspended && slices.ContainsFunc(it.Questions, func(q Question) bool { return q.ID == question })
}

// Suspend returns the next state of the item of a call that asks questions. raw is the request to send
// again, base the index of the stream's last event. The argument within is how long the questions stay
// open, at most MaxAsk.
func (it Item) Suspend(questions []Question, raw []byte, base Index, now time.Time, within time.Duration) Item {
	it.State, it.Round = Suspended, it.Round+1
	it.Questions, it.Raw, it.Base = questions, raw, base
	it.Created, it.NotAfter = now, now.Add(min(within, MaxAsk))
	return it
}

// Resume returns the next state of the item when all questions are answered. raw is the
// request with the answers; it waits for a box until notAfter.
func (it Item) Resume(raw []byte, now, notAfter time.Time) Item {
	it.State, it.Gen, it.Questions = Waiting, 0, nil
	it.Raw, it.Created, it.NotAfter = raw, now, notAfter
	return it
}
