package runner

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	helloAgain   = 5 * time.Second // a hello without an answer is sent again
	helloTries   = 3               // hellos without an answer, after which the connection is given up
	askFor       = time.Second     // how long a hello waits for the open questions
	retireAfter  = 5 * time.Second // how long a replaced connection is still read
	dialWithin   = 10 * time.Second
	reconnectFor = 2 * time.Minute // how long the runner tries to reach the host before it gives up
	sendWithin   = 30 * time.Second
	firstBackOff = 500 * time.Millisecond
	lastBackOff  = 10 * time.Second
	longBackOff  = 5                // how often firstBackOff doubles in the wait of a runner whose host throttles
	longestWait  = 30 * time.Second // the longest wait that a host may ask for
	roundsWithin = 10 * time.Minute
	maxRounds    = 5           // how many refusals within roundsWithin may be this runner's fault
	maxDrain     = time.Hour   // the longest time over which a drain may spread renewals
	looseAfter   = time.Minute // after this long without a connection, back-pressure ends
	maxQuestions = 80_000      // bytes of questions in a hello; the rest goes into a later hello
	maxKept      = 64          // frames that wait for a connection
)

var errSilent = errors.New("the host does not answer")

// phase is the stage of a runner's life.
//
//	joining ──▶ up ──▶ parting ──▶ lingering ──▶ (returns)
//	            ▲         │            │
//	            └───── rejoining ◀─────┘
//
// Only in stage up does the runner execute messages, and send frames other than hello
// and bye.
type phase int

const (
	joining   phase = iota // no welcome yet
	up                     // welcomed, no bye since
	parting                // bye was said
	lingering              // the host has taken the bye; the runner stays for messages that were on their way
	rejoining              // the runner has sent hello after the bye; the welcome decides
)

// links keeps one connection to the host: it sends hello, which is also the ping, renews the
// connection before the gateway's limit, and comes back after a cut. During a renewal there
// are two. The runner reads both, and sends on the one with the last welcome.
type links struct {
	cfg       *Config
	loop      *loop
	executing *executing
	life      *life // gets what comes over the connections

	runner string             // this runner's random id, which only the host knows
	pass   string             // the newest pass that the host has given
	gen    storage.Generation // of the last welcome
	no     int64              // number of the last hello on a new connection or after a bye
	stage  phase
	ctx    context.Context // of dialing
	cancel context.CancelFunc

	live    *link          // the welcomed connection, which all frames use
	next    *link          // open, its hello not answered yet
	open    map[*link]bool // live, next, and replaced connections that the runner still reads
	dialing bool

	invited  bool  // the runner was invited, and has not got its launch yet
	welcomed bool  // there was a welcome, so the token is used up
	failed   int   // attempts since the last welcome; they decide the back-off
	lost     error // why the last attempt failed
	rounds   int   // how many connections since rounded ended with reconnectSeldom
	rounded  time.Time
	renewBy  time.Time // when renewal rings
	kept     [][]byte  // frames for the next connection; see sendKept

	redial, giveUp, loosen, pinging, renewal alarm
}

type link struct {
	conn   Conn
	no     int64 // number of the last hello that was sent on this connection
	asking bool  // the Executor was asked for the questions of a hello and has not answered
	tries  int   // hellos without an answer
	answer alarm
	retire alarm

	queue   []outgoing
	writing bool
	current outgoing      // while writing
	out     chan []byte   // capacity 1; filled only while writing is false
	gone    chan struct{} // closed when dead
	dead    bool

	parts   frame.Assembler
	foreign bool // a frame of another version came
}

// outgoing is a message for the writer. If keep is set and the connection ends before the
// message is written, it goes to the next connection.
type outgoing struct {
	data []byte
	keep bool
}

func (ls *links) sender() frame.Sender {
	return frame.Sender{Box: ls.cfg.Box, Gen: ls.gen, Runner: ls.runner}
}

// ofBox is sender without the runner's id, for frames that the host trusts because of
// their tickets.
func (ls *links) ofBox() frame.Sender { return frame.Sender{Box: ls.cfg.Box, Gen: ls.gen} }

func (ls *links) fence() {
	ls.cfg.Log.Warn("fenced by a newer runner", "generation", ls.gen, "link", ls.no)
	ls.loop.finish(storage.Errorf(ErrFenced, "a newer runner than generation %d runs box %s; stop and exit", ls.gen, ls.cfg.Box))
}

// drawn returns a random duration of at least 0 and less than d.
func (ls *links) drawn(d time.Duration) time.Duration {
	return time.Duration(ls.cfg.Rand.Int64N(int64(max(d, 1))))
}

func (ls *links) beginLinks() {
	ls.loop.set(&ls.giveUp, reconnectFor, ls.abandon)
	ls.connect()
}

// connect opens a connection unless it is opening one already.
func (ls *links) connect() {
	if ls.dialing || ls.next != nil {
		return
	}
	ls.dialing = true
	header := carrying(ls.pass)
	ls.loop.spawn(func() {
		ctx, cancel := context.WithTimeout(ls.ctx, dialWithin)
		defer cancel()
		conn, err := ls.cfg.Dial(ctx, ls.cfg.URL, header)
		if !ls.loop.post(func() { ls.dialed(conn, err) }) && err == nil {
			_ = conn.Close("stopped") // the loop has ended
		}
	})
}

func (ls *links) dialed(conn Conn, err error) {
	ls.dialing = false
	if err != nil {
		ls.cfg.Log.Warn("connecting to the host failed", "attempt", ls.failed+1, "error", err)
		ls.retry(reconnectionOf(err), err)
		return
	}
	lk := &link{conn: conn, out: make(chan []byte, 1), gone: make(chan struct{})}
	ls.next, ls.open[lk] = lk, true
	ls.loop.spawn(func() { ls.read(lk) })
	ls.loop.spawn(func() { ls.write(lk) })
	ls.hello(lk)
}

func (ls *links) read(lk *link) {
	for {
		data, err := lk.conn.Receive()
		if !ls.loop.post(func() { ls.received(lk, data, err) }) || err != nil {
			return
		}
	}
}

// received handles a message of a connection, or the error that ended it.
func (ls *links) received(lk *link, data []byte, err error) {
	if lk.dead {
		return
	}
	if err != nil {
		ls.cut(lk, err)
		return
	}
	if len(data) == 0 {
		return // the gateway may pass on a function's empty answer as an empty message
	}
	f, err := frame.Decode(data)
	if part, ok := f.(frame.Part); ok {
		if data, _, err = lk.parts.Add(part); data == nil && err == nil {
			return
		}
		if err != nil {
			// This end holds incomplete parts until the connection closes, so begin a new
			// connection.
			ls.cut(lk, err)
			return
		}
		f, err = frame.Decode(data)
	}
	if err != nil {
		ls.unreadable(lk, len(data), err)
		return
	}
	ls.life.frame(lk, f)
}

// unreadable skips a message that is no frame, for example the gateway's own message about
// a failed function. If the host has another version, every frame is unreadable;
// unreadable logs that once for a connection.
func (ls *links) unreadable(lk *link, size int, err error) {
	if _, ok := errors.AsType[*frame.VersionError](err); ok {
		if lk.foreign {
			return
		}
		lk.foreign = true
	}
	ls.cfg.Log.Warn("message is no relay frame", "link", lk.no, "bytes", size, "error", err)
}

func (ls *links) write(lk *link) {
	for {
		var data []byte
		select {
		case <-lk.gone:
			return
		case data = <-lk.out:
		}
		select {
		case <-lk.gone:
			return
		default:
		}
		err := lk.conn.Send(data)
		if !ls.loop.post(func() { ls.written(lk, err) }) {
			return
		}
	}
}

func (ls *links) written(lk *link, err error) {
	if lk.dead {
		return
	}
	lk.writing, lk.current = false, outgoing{}
	if err != nil {
		ls.cut(lk, err)
		return
	}
	lk.pump()
}

func (lk *link) pump() {
	if lk.writing || len(lk.queue) == 0 {
		return
	}
	lk.writing, lk.current = true, lk.queue[0]
	lk.queue[0] = outgoing{}
	lk.queue = lk.queue[1:]
	lk.out <- lk.current.data
}

func (lk *link) send(o outgoing) {
	lk.queue = append(lk.queue, o)
	lk.pump()
}

// sendFirst puts a message before all others. Small frames that keep the connection alive
// must not wait behind megabytes. The host does not depend on the order of frames.
func (lk *link) sendFirst(data []byte) {
	lk.queue = slices.Insert(lk.queue, 0, outgoing{data: data})
	lk.pump()
}

// busy reports whether messages are still to be written. A repeated message would only
// queue behind them.
func (lk *link) busy() bool { return lk.writing || len(lk.queue) > 0 }

// againIfFree calls do after ackAfter. If the connection is busy at that time, againIfFree
// waits once more, because what do sends would only queue behind other messages.
func (ls *links) againIfFree(a *alarm, do func()) {
	ls.loop.set(a, ackAfter, func() {
		if ls.linked() && ls.live.busy() {
			ls.againIfFree(a, do)
			return
		}
		do()
	})
}

// linked reports whether frames other than hello and bye may be sent now.
func (ls *links) linked() bool { return ls.live != nil && ls.stage == up }

// sendKept sends a message now or on the next connection.
func (ls *links) sendKept(data []byte) {
	if ls.linked() {
		ls.live.send(outgoing{data, true})
		return
	}
	if len(ls.kept) == maxKept {
		ls.kept = ls.kept[1:]
	}
	ls.kept = append(ls.kept, data)
}

// hello sends a hello with a new number, on a new connection or after a bye.
func (ls *links) hello(lk *link) {
	ls.no++
	lk.no, lk.tries = ls.no, 0
	ls.sayHello(lk)
}

// sayHello sends a hello with the number of the connection. If that number was welcomed
// already, the hello is a ping. The hello carries the open questions if the Executor
// returns them within askFor. If not, a later hello carries them.
func (ls *links) sayHello(lk *link) {
	if !ls.welcomed {
		ls.writeHello(lk, nil)
		return
	}
	lk.asking = true
	no := lk.no
	write := func(questions map[storage.ID][]string) {
		if lk.asking && lk.no == no && !lk.dead {
			ls.writeHello(lk, questions)
		}
	}
	ls.executing.call(func(e Executor) {
		questions := fit(e.Questions())
		ls.loop.post(func() { write(questions) })
	})
	ls.loop.set(&lk.answer, askFor, func() { write(nil) })
}

func (ls *links) writeHello(lk *link, questions map[storage.ID][]string) {
	lk.asking = false
	lk.tries++
	f := frame.Hello{Sender: ls.sender(), Link: lk.no, Task: ls.cfg.Task, Digest: ls.cfg.Digest, Baked: ls.cfg.Baked, Questions: questions, Invited: ls.invited}
	if !ls.welcomed {
		f.Token = ls.cfg.Token
	}
	lk.sendFirst(frame.Encode(f))
	ls.loop.set(&lk.answer, helloAgain, func() {
		if lk.tries >= helloTries {
			ls.cut(lk, errSilent)
			return
		}
		ls.sayHello(lk)
	})
}

// fit returns the questions that fit into one hello, and leaves out the others.
func fit(questions map[storage.ID][]string) map[storage.ID][]string {
	size := 0
	out := make(map[storage.ID][]string, len(questions))
	for s, ids := range questions {
		for _, id := range ids {
			if size += len(s) + len(id) + 8; size > maxQuestions {
				return out
			}
			out[s] = append(out[s], id)
		}
	}
	return out
}

// greeting reports whether a hello is still without an answer.
func (lk *link) greeting() bool { return lk.asking || lk.tries > 0 }

// welcomeCame handles the answer to a hello. Only the answer to the newest hello counts:
// an older welcome may come after a bye that the host handled later.
func (ls *links) welcomeCame(lk *link, f frame.Welcome) {
	if f.Link == lk.no {
		lk.asking, lk.tries = false, 0
		lk.answer.stop()
	}
	if f.Link != ls.no || lk.no != ls.no || f.Gen < ls.gen || ls.stage == parting || ls.stage == lingering {
		return
	}
	moved := lk != ls.live
	if moved {
		ls.promote(lk)
	}
	fresh, same := f.Gen != ls.gen || !ls.welcomed, ls.stage == up
	ls.gen, ls.stage, ls.welcomed = f.Gen, up, true
	ls.pass = cmp.Or(f.Ticket, ls.pass)
	if moved || !same {
		ls.cfg.Log.Info("welcomed by the host", "generation", ls.gen, "link", ls.no)
	}
	ls.loop.set(&ls.pinging, ls.cfg.PingEvery, ls.ping)
	if ls.invited {
		ls.invited = false
		ls.life.begin(f.Launch)
	}
	if f.Retire {
		ls.life.sleep.retire()
	}
	if moved || fresh || !same {
		kept := ls.kept
		ls.kept = nil
		for _, data := range kept {
			ls.sendKept(data)
		}
		ls.life.resume(moved, fresh)
	}
}

// promote makes lk the connection that all frames use.
func (ls *links) promote(lk *link) {
	if old := ls.live; old != nil {
		old.answer.stop()
		ls.loop.set(&old.retire, retireAfter, func() { ls.drop(old, "renewed") })
	}
	ls.live, ls.next, ls.failed = lk, nil, 0
	ls.redial.stop()
	ls.giveUp.stop()
	ls.loosen.stop()
	ls.renewIn(ls.cfg.RenewAfter)
}

func (ls *links) renewIn(after time.Duration) {
	ls.renewBy = time.Now().Add(after)
	ls.loop.set(&ls.renewal, after, ls.renew)
}

// fenced handles a fence. A fence for the newest hello ends Run. A fence for an older
// hello may be late, so the runner asks the host with another hello.
func (ls *links) fenced(f frame.Fenced) {
	if f.Link >= ls.no {
		ls.fence()
		return
	}
	ls.ask()
}

func (ls *links) ping() {
	ls.loop.set(&ls.pinging, ls.cfg.PingEvery, ls.ping)
	ls.ask()
}

// ask sends one more hello on the live connection, unless a hello is already without an
// answer.
func (ls *links) ask() {
	if ls.linked() && ls.next == nil && !ls.live.greeting() {
		ls.sayHello(ls.live)
	}
}

// renew opens a new connection, even while the old one lives. After a bye it waits
// until the bye has been answered.
func (ls *links) renew() {
	if ls.live != nil && ls.stage != up {
		ls.loop.set(&ls.redial, lastBackOff, ls.renew)
		return
	}
	ls.connect()
}

// drain renews the connection within the time that the host has given. The moment is
// random, so that the runners do not all come at once. A quarter of the time is left for
// connecting. A renewal that is due earlier keeps its time.
func (ls *links) drain(within time.Duration) {
	if ls.linked() {
		ls.renewIn(min(ls.drawn(within*3/4), time.Until(ls.renewBy)))
	}
}

// cut handles the end of a connection and opens another one.
func (ls *links) cut(lk *link, err error) {
	if lk.dead {
		return
	}
	ls.drop(lk, "lost")
	after := reconnectionOf(err)
	if lk.no < ls.no && (after == fencedOff || after == stayAway) {
		after = reconnect // a hello without an answer is newer than the refusal, so its answer decides
	}
	switch lk {
	case ls.live:
		ls.live = nil
		ls.cfg.Log.Warn("connection to the host lost", "link", lk.no, "error", err)
		ls.loop.set(&ls.giveUp, reconnectFor, ls.abandon)
		ls.loop.set(&ls.loosen, looseAfter, ls.life.outboxes.loosenAll)
		if ls.stage == parting {
			// The runner does not repeat the bye. The hello on the next connection tells
			// whether the host took it.
			ls.stage = rejoining
		}
		ls.retry(after, err)
	case ls.next:
		ls.next = nil
		if ls.live != nil {
			// The host may have taken the hello on the lost connection. Tell it that live
			// is the newest.
			ls.hello(ls.live)
		}
		ls.retry(after, err)
	}
}

// retry connects after a pause that grows with every failure. It ends Run instead
// if the host has refused this runner for good.
func (ls *links) retry(after reconnection, err error) {
	ls.lost = err
	switch {
	case ls.stage == lingering:
		return // the runner has nothing left to say
	case after == fencedOff:
		ls.fence()
		return
	case ls.unwelcome(after) && ls.live == nil:
		ls.loop.finish(storage.Errorf(storage.Invalid, "the relay does not take the runner of box %s", ls.cfg.Box).Because(err))
		return
	case after == reconnectLater:
		ls.failed = max(ls.failed, longBackOff)
	}
	pause := min(firstBackOff<<min(ls.failed, longBackOff), lastBackOff)
	ls.failed++
	ls.loop.set(&ls.redial, max(ls.drawn(pause)+pause/10, min(askedToWait(err), longestWait)), ls.renew)
}

// unwelcome reports whether the host has refused this runner for good. It has if the
// error says so, or if it refused the runner maxRounds times within roundsWithin. The
// caller goes on nevertheless while the runner has a connection.
func (ls *links) unwelcome(after reconnection) bool {
	if after != reconnectSeldom {
		return after == stayAway
	}
	if time.Since(ls.rounded) > roundsWithin {
		ls.rounds, ls.rounded = 0, time.Now()
	}
	ls.rounds++
	return ls.rounds >= maxRounds
}

func (ls *links) abandon() {
	err := storage.Errorf(storage.Unavailable, "the relay could not be reached for %s", reconnectFor)
	ls.loop.finish(err.Because(ls.lost))
}

func (ls *links) drop(lk *link, reason string) {
	lk.dead = true
	delete(ls.open, lk)
	lk.answer.stop()
	lk.retire.stop()
	close(lk.gone)
	for _, o := range append(lk.queue, lk.current) {
		if o.keep {
			ls.kept = append(ls.kept, o.data)
		}
	}
	lk.queue = nil
	ls.loop.spawn(func() { _ = lk.conn.Close(reason) }) // the runner gives this connection up in any case
}

// endLinks closes the open connections at the end of Run.
func (ls *links) endLinks() {
	for lk := range ls.open {
		ls.drop(lk, "stopped")
	}
	ls.cancel()
}

// carrying returns the header that shows a pass, or nil without a pass.
func carrying(pass string) http.Header {
	if pass == "" {
		return nil
	}
	return http.Header{frame.PassHeader: {pass}}
}
