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
	helloAgain   = 5 * time.Second // how long the runner waits for the answer to a [frame.Hello] before it sends the hello again
	helloTries   = 3               // after so many hellos without an answer, the connection is given up
	askFor       = time.Second     // how long a hello waits for the Executor to list the open questions
	retireAfter  = 5 * time.Second // how long a replaced connection is still read
	dialWithin   = 10 * time.Second
	reconnectFor = 2 * time.Minute // how long the runner tries to reach the host before it gives up
	sendWithin   = 30 * time.Second
	firstBackOff = 500 * time.Millisecond
	lastBackOff  = 10 * time.Second
	longBackOff  = 5                // the most doublings of firstBackOff; throttling by the host causes all of them at once
	longestWait  = 30 * time.Second // the longest pause that the host may ask for
	roundsWithin = 10 * time.Minute
	maxRounds    = 5         // Run ends after so many refusals within roundsWithin, if they may be this runner's fault
	maxDrain     = time.Hour // the longest time that a [frame.Drain] may give
	maxQuestions = 80_000    // bytes of question ids in a [frame.Hello]; further ids are left out
	maxKept      = 64        // frames that are kept for the next connection
)

var errSilent = errors.New("the host does not answer")

// phase says how far a runner is between its start and its end.
//
//	joining ──▶ up ──▶ parting ──▶ lingering ──▶ (returns)
//	            ▲         │            │
//	            └───── rejoining ◀─────┘
//
// Only in phase up does the runner execute messages, and send frames other than [frame.Hello] and
// [frame.Bye].
type phase int

const (
	joining   phase = iota // no [frame.Welcome] has come yet
	up                     // a welcome has come, and no bye was sent after it
	parting                // a bye was sent
	lingering              // the host has answered the bye; the runner waits for messages that were on their way
	rejoining              // a hello was sent after a bye; its answer says whether the bye counts
)

// links keeps one connection to the host. It renews the connection before the gateway's time
// limit, and connects again after the connection was lost. During a renewal the runner reads two
// connections, and sends on the one on which the last [frame.Welcome] came.
type links struct {
	cfg       *Config
	loop      *loop
	executing *executing
	life      *life // handles the frames that come over the connections

	runner string             // the random id of this runner, which is a secret shared with the host
	pass   string             // authenticates the next connection, see frame.PassHeader; from the last [frame.Welcome]
	gen    storage.Generation // the Gen of the last [frame.Welcome]
	no     int64              // how many [frame.Hello] with a new number were sent; see the method hello
	stage  phase
	ctx    context.Context // ends the dialing of connections
	cancel context.CancelFunc

	live    *link          // the connection with the last [frame.Welcome], on which all frames are sent
	next    *link          // a new connection whose [frame.Hello] has no answer yet
	open    map[*link]bool // live, next, and replaced connections that are still read
	dialing bool

	invited bool      // the runner was started before its box was known, and no welcome has brought the box's settings yet
	failed  int       // attempts to connect since the last [frame.Welcome], which determine the pause
	lost    error     // why the last attempt failed
	rounds  int       // how many refusals the method unwelcome has counted
	rounded time.Time // when unwelcome began to count
	renewBy time.Time // when renewal fires
	kept    [][]byte  // frames for the next connection; see sendKept

	redial, giveUp, pinging, renewal alarm
}

type link struct {
	conn   Conn
	no     int64 // number of the last [frame.Hello] that was sent on this connection
	asking bool  // a [frame.Hello] waits for the Executor to list the open questions
	tries  int   // hellos sent since the last answer
	answer alarm
	retire alarm

	queue   []outgoing
	writing bool
	current outgoing      // the message that is being written, if writing is true
	out     chan []byte   // the next message for the goroutine that writes; capacity 1, so the loop never blocks
	gone    chan struct{} // closed when dead becomes true
	dead    bool

	parts frame.Assembler
}

// outgoing is a message to send. If keep is set, a message that a lost connection has not written
// is sent over the next one.
type outgoing struct {
	data []byte
	keep bool
}

func (ls *links) sender() frame.Sender {
	return frame.Sender{Box: ls.cfg.Box, Gen: ls.gen, Runner: ls.runner}
}

// ofBox returns what the method sender returns, but without the runner's id. Frames with tickets
// use ofBox: the host trusts a ticket instead of the id.
func (ls *links) ofBox() frame.Sender { return frame.Sender{Box: ls.cfg.Box, Gen: ls.gen} }

func (ls *links) fence() {
	ls.cfg.Log.Warn("fenced by a newer runner", "generation", ls.gen, "link", ls.no)
	ls.loop.finish(storage.Errorf(ErrFenced, "a newer runner than generation %d runs box %s; stop and exit", ls.gen, ls.cfg.Box))
}

// drawn returns a random duration of at least 0 and less than d.
func (ls *links) drawn(d time.Duration) time.Duration {
	return time.Duration(ls.cfg.Rand.Int64N(int64(max(d, 1))))
}

// connect opens a connection, unless one is being opened already.
func (ls *links) connect() {
	if ls.dialing || ls.next != nil {
		return
	}
	ls.dialing = true
	header := http.Header{}
	if ls.pass != "" {
		header.Set(frame.PassHeader, ls.pass)
	}
	ls.loop.wg.Go(func() {
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
	ls.loop.wg.Go(func() { ls.read(lk) })
	ls.loop.wg.Go(func() { ls.write(lk) })
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

// received handles a message of a connection, or the error that has ended the connection.
func (ls *links) received(lk *link, data []byte, err error) {
	if lk.dead {
		return
	}
	if err != nil {
		ls.cut(lk, err)
		return
	}
	if len(data) == 0 {
		return // the gateway may pass on the empty answer of a Lambda function as an empty message
	}
	f, err := frame.Decode(data)
	if part, ok := f.(frame.Part); ok {
		if data, _, err = lk.parts.Add(part); data == nil && err == nil {
			return
		}
		if err != nil {
			// The parts that came before stay in memory until the connection closes, so begin a
			// new connection.
			ls.cut(lk, err)
			return
		}
		f, err = frame.Decode(data)
	}
	if err != nil { // such as the gateway's own message about a Lambda function that failed
		ls.cfg.Log.Warn("message is no relay frame", "link", lk.no, "bytes", len(data), "error", err)
		return
	}
	ls.life.frame(lk, f)
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

// sendFirst puts a message before all others that wait. The order of frames does not matter to the
// host.
func (lk *link) sendFirst(data []byte) {
	lk.queue = slices.Insert(lk.queue, 0, outgoing{data: data})
	lk.pump()
}

// busy reports whether messages wait to be written.
func (lk *link) busy() bool { return lk.writing || len(lk.queue) > 0 }

// againIfFree calls the function do after the time ackAfter. While the connection is busy,
// againIfFree waits for another ackAfter, because a repeated message would only wait behind others.
func (ls *links) againIfFree(a *alarm, do func()) {
	ls.loop.set(a, ackAfter, func() {
		if ls.linked() && ls.live.busy() {
			ls.againIfFree(a, do)
			return
		}
		do()
	})
}

// linked reports whether frames other than [frame.Hello] and [frame.Bye] may be sent now.
func (ls *links) linked() bool { return ls.live != nil && ls.stage == up }

// sendKept sends a message now, or else over the next connection. If more than maxKept messages
// wait for a connection, it drops the oldest.
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

// hello sends a [frame.Hello] with a new number. For the host, lk is then the newest connection.
func (ls *links) hello(lk *link) {
	ls.no++
	lk.no, lk.tries = ls.no, 0
	ls.sayHello(lk)
}

// sayHello sends a [frame.Hello] with the current number of the connection. The hello contains the
// ids of the open questions, if the Executor returns them within askFor.
func (ls *links) sayHello(lk *link) {
	if ls.stage == joining {
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
	ls.executing.call(func(e frame.Executor) {
		questions := fit(e.Questions())
		ls.loop.post(func() { write(questions) })
	})
	ls.loop.set(&lk.answer, askFor, func() { write(nil) })
}

func (ls *links) writeHello(lk *link, questions map[storage.ID][]string) {
	lk.asking = false
	lk.tries++
	f := frame.Hello{Sender: ls.sender(), Link: lk.no, Task: ls.cfg.Task, Digest: ls.cfg.Digest, Baked: ls.cfg.Baked, Questions: questions, Invited: ls.invited}
	if ls.stage == joining {
		f.Token = ls.cfg.Token // the first welcome uses it up
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

// fit returns those questions that fit into one [frame.Hello].
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

// greeting reports whether a [frame.Hello] has no answer yet.
func (lk *link) greeting() bool { return lk.asking || lk.tries > 0 }

// welcomeCame handles the answer to a [frame.Hello]. Only the answer to the newest hello counts: the
// host may have sent an older answer before it got a [frame.Bye].
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
	fresh, same := f.Gen != ls.gen || ls.stage == joining, ls.stage == up
	ls.gen, ls.stage = f.Gen, up
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

// promote makes lk the connection on which all frames are sent.
func (ls *links) promote(lk *link) {
	if old := ls.live; old != nil {
		old.answer.stop()
		ls.loop.set(&old.retire, retireAfter, func() { ls.drop(old, "renewed") })
	}
	ls.live, ls.next, ls.failed = lk, nil, 0
	ls.redial.stop()
	ls.giveUp.stop()
	ls.renewIn(ls.cfg.RenewAfter)
}

func (ls *links) renewIn(after time.Duration) {
	ls.renewBy = time.Now().Add(after)
	ls.loop.set(&ls.renewal, after, ls.renew)
}

// fenced handles a [frame.Fenced]. If the frame answers the newest [frame.Hello], Run ends. The
// answer to an older hello may be out of date, so the runner sends another hello.
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

// ask sends a [frame.Hello] as a ping on the live connection, unless a hello has no answer yet.
func (ls *links) ask() {
	if ls.linked() && ls.next == nil && !ls.live.greeting() {
		ls.sayHello(ls.live)
	}
}

// renew opens a new connection, even if there is one. After a [frame.Bye], renew first waits for
// the answer to the bye.
func (ls *links) renew() {
	if ls.live != nil && ls.stage != up {
		ls.loop.set(&ls.redial, lastBackOff, ls.renew)
		return
	}
	ls.connect()
}

// drain renews the connection within a time that the host has given. It draws a random moment in
// the first three quarters of that time, so that not all runners connect at once.
func (ls *links) drain(within time.Duration) {
	if ls.linked() {
		ls.renewIn(min(ls.drawn(within*3/4), time.Until(ls.renewBy)))
	}
}

// cut handles the end of a connection, and opens another one.
func (ls *links) cut(lk *link, err error) {
	if lk.dead {
		return
	}
	ls.drop(lk, "lost")
	after := reconnectionOf(err)
	if lk.no < ls.no && (after == fencedOff || after == stayAway) {
		after = reconnect // this connection's refusal is older than the last hello, whose answer decides
	}
	switch lk {
	case ls.live:
		ls.live = nil
		ls.cfg.Log.Warn("connection to the host lost", "link", lk.no, "error", err)
		ls.loop.set(&ls.giveUp, reconnectFor, ls.abandon)
		if ls.stage == parting {
			// The answer to the hello on the next connection says whether the host got the bye.
			ls.stage = rejoining
		}
		ls.retry(after, err)
	case ls.next:
		ls.next = nil
		if ls.live != nil {
			// The host may have got the hello of the lost connection; this hello makes ls.live the
			// newest connection again.
			ls.hello(ls.live)
		}
		ls.retry(after, err)
	}
}

// retry connects again after a pause that grows with each failure. If the host has refused this
// runner for good, retry ends Run instead.
func (ls *links) retry(after reconnection, err error) {
	ls.lost = err
	switch {
	case ls.stage == lingering:
		return // the runner has nothing more to send
	case after == fencedOff:
		ls.fence()
		return
	case ls.unwelcome(after) && ls.live == nil:
		ls.loop.finish(storage.Errorf(storage.Invalid, "the relay does not take the runner of box %s", ls.cfg.Box).Because(err))
		return
	case after == reconnectLater:
		ls.failed = max(ls.failed, longBackOff)
	}
	var asked time.Duration // for how long the host has asked the runner to wait
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		asked = min(refused.After, longestWait)
	}
	pause := min(firstBackOff<<min(ls.failed, longBackOff), lastBackOff)
	ls.failed++
	ls.loop.set(&ls.redial, max(ls.drawn(pause)+pause/10, asked), ls.renew)
}

// unwelcome reports whether the host has refused this runner for good: the argument is stayAway, or
// the host has refused the runner maxRounds times within roundsWithin.
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
	ls.loop.wg.Go(func() { _ = lk.conn.Close(reason) }) // an error does not matter, the connection is given up
}

func (ls *links) endLinks() {
	for lk := range ls.open {
		ls.drop(lk, "stopped")
	}
	ls.cancel()
}
