package runner

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// The runner's connections: hello and its answer, ping, renewal before the
// gateway's limit, reconnect after a cut. During a renewal there are two, and
// both are read; what is sent goes to the one that was welcomed last.

const (
	helloAgain   = 5 * time.Second // a hello without an answer is sent again
	helloTries   = 3               // then the connection is given up
	askFor       = time.Second     // a hello waits so long for the open questions
	retireAfter  = 5 * time.Second // a replaced connection is still read
	dialWithin   = 10 * time.Second
	sendWithin   = 30 * time.Second
	firstBackOff = 500 * time.Millisecond
	lastBackOff  = 10 * time.Second
	longBackOff  = 5                // doublings of the first; where a host that throttles puts a runner
	longestWait  = 30 * time.Second // of what a host asks for
	roundsWithin = 10 * time.Minute
	maxRounds    = 5           // ends within that time that may be this runner's fault
	maxDrain     = time.Hour   // a drain spreads over no more
	looseAfter   = time.Minute // without a connection, back-pressure ends
	maxQuestions = 80_000      // bytes of questions in a hello; the rest is asked with the next
	maxKept      = 64          // frames that wait for a connection
)

// links are the connections of a life.
type links struct {
	live    *link          // welcomed; everything is sent on it
	next    *link          // open, its hello not answered yet
	open    map[*link]bool // these two, and those that were replaced and are still read
	dialing bool

	no       int64 // counts hellos on new connections, and hellos after a bye
	welcomed bool  // at least once: the token is used up
	failed   int   // attempts since the last welcome, for the back-off
	lost     error // why the last one failed
	rounds   int   // ends since rounded that said comeRound
	rounded  time.Time
	renewBy  time.Time // when renewal rings
	kept     [][]byte

	redial, giveUp, loosen, pinging, renewal alarm
}

// link is one connection.
type link struct {
	conn   Conn
	no     int64 // of the last hello said on it
	asking bool  // the Executor is asked for the questions of a hello
	tries  int   // hellos without an answer
	answer alarm
	retire alarm

	queue   []outgoing
	writing bool
	current outgoing      // while writing
	out     chan []byte   // has room for one, which is put in only when writing is false
	gone    chan struct{} // closed when dead
	dead    bool

	parts   frame.Assembler
	foreign bool // a frame of another version came
}

// outgoing is a message on its way to the writer. One that is kept goes to the
// next connection if this one ends before it was written.
type outgoing struct {
	data []byte
	keep bool
}

func (l *life) beginLinks() {
	l.set(&l.giveUp, l.ReconnectFor, l.abandon)
	l.connect()
}

// connect opens a connection unless one is being opened already.
func (l *life) connect() {
	if l.dialing || l.next != nil {
		return
	}
	l.dialing = true
	header := carrying(l.Pass)
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, dialWithin)
		defer cancel()
		conn, err := l.Dial(ctx, l.URL, header)
		if !l.r.post(func(l *life) { l.dialed(conn, err) }) && err == nil {
			_ = conn.Close("stopped") // nobody is left who could act on it
		}
	})
}

func (l *life) dialed(conn Conn, err error) {
	l.dialing = false
	if err != nil {
		l.Log.Warn("connecting to the host failed", "attempt", l.failed+1, "error", err)
		l.retry(sequelOf(err), err)
		return
	}
	lk := &link{conn: conn, out: make(chan []byte, 1), gone: make(chan struct{})}
	l.next, l.open[lk] = lk, true
	l.wg.Go(func() { l.read(lk) })
	l.wg.Go(func() { l.write(lk) })
	l.hello(lk)
}

func (l *life) read(lk *link) {
	for {
		data, err := lk.conn.Receive()
		if !l.r.post(func(l *life) { l.received(lk, data, err) }) || err != nil {
			return
		}
	}
}

func (l *life) write(lk *link) {
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
		if !l.r.post(func(l *life) { l.written(lk, err) }) {
			return
		}
	}
}

func (l *life) written(lk *link, err error) {
	if lk.dead {
		return
	}
	lk.writing, lk.current = false, outgoing{}
	if err != nil {
		l.cut(lk, err)
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

// sendFirst overtakes what waits: small frames that keep the connection must not
// stand behind megabytes. The order of frames means nothing to the host.
func (lk *link) sendFirst(data []byte) {
	lk.queue = slices.Insert(lk.queue, 0, outgoing{data: data})
	lk.pump()
}

// busy says that something is still to be written: a repetition would only queue
// behind it.
func (lk *link) busy() bool { return lk.writing || len(lk.queue) > 0 }

// linked says whether anything but hello and bye may be sent now.
func (l *life) linked() bool { return l.live != nil && l.stage == up }

// sendKept sends a message now or on the next connection.
func (l *life) sendKept(data []byte) {
	if l.linked() {
		l.live.send(outgoing{data, true})
		return
	}
	if len(l.kept) == maxKept {
		l.kept = l.kept[1:]
	}
	l.kept = append(l.kept, data)
}

// hello says hello with a new number: on a new connection, or after a bye.
func (l *life) hello(lk *link) {
	l.no++
	lk.no, lk.tries = l.no, 0
	l.sayHello(lk)
}

// sayHello says hello with the number the connection has; with one that was
// answered before it is a ping. It carries the open questions if the Executor
// tells them soon, else they are asked with the next.
func (l *life) sayHello(lk *link) {
	if !l.welcomed {
		l.writeHello(lk, nil)
		return
	}
	lk.asking = true
	no := lk.no
	write := func(questions map[session.ID][]string) {
		if lk.asking && lk.no == no && !lk.dead {
			l.writeHello(lk, questions)
		}
	}
	l.call(func() {
		questions := fit(l.Executor.Questions())
		l.r.post(func(*life) { write(questions) })
	})
	l.set(&lk.answer, askFor, func() { write(nil) })
}

func (l *life) writeHello(lk *link, questions map[session.ID][]string) {
	lk.asking = false
	lk.tries++
	f := frame.Frame{Type: frame.Hello, Box: l.Box, Gen: l.gen, Runner: l.runner, Link: lk.no, Task: l.Task, Questions: questions}
	if !l.welcomed {
		f.Token = l.Token
	}
	lk.sendFirst(frame.Encode(f))
	l.set(&lk.answer, helloAgain, func() {
		if lk.tries >= helloTries {
			l.cut(lk, errSilent)
			return
		}
		l.sayHello(lk)
	})
}

// fit leaves out questions that would make a hello too long for one message.
func fit(questions map[session.ID][]string) map[session.ID][]string {
	size := 0
	out := make(map[session.ID][]string, len(questions))
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

// greeting says that a hello is not answered yet.
func (lk *link) greeting() bool { return lk.asking || lk.tries > 0 }

// welcomeCame takes the answer to a hello. Only the newest hello's counts: an
// older welcome may have been overtaken by a bye (S1).
func (l *life) welcomeCame(lk *link, f frame.Frame) {
	if f.Link == lk.no {
		lk.asking, lk.tries = false, 0
		lk.answer.stop()
	}
	if f.Link != l.no || lk.no != l.no || f.Gen < l.gen || l.stage == parting || l.stage == lingering {
		return
	}
	moved := lk != l.live
	if moved {
		l.promote(lk)
	}
	fresh, same := f.Gen != l.gen || !l.welcomed, l.stage == up
	l.gen, l.stage, l.welcomed = f.Gen, up, true
	l.Pass = cmp.Or(f.Ticket, l.Pass)
	if moved || !same {
		l.Log.Info("welcomed by the host", "generation", l.gen, "link", l.no)
	}
	l.set(&l.pinging, l.PingEvery, l.ping)
	if moved || fresh || !same {
		l.resume(moved, fresh)
	}
}

// promote makes a connection the one that is sent on.
func (l *life) promote(lk *link) {
	if old := l.live; old != nil {
		old.answer.stop()
		l.set(&old.retire, retireAfter, func() { l.drop(old, "renewed") })
	}
	l.live, l.next, l.failed, l.loose = lk, nil, 0, false
	l.redial.stop()
	l.giveUp.stop()
	l.loosen.stop()
	l.renewIn(l.RenewAfter)
}

func (l *life) renewIn(after time.Duration) {
	l.renewBy = time.Now().Add(after)
	l.set(&l.renewal, after, l.renew)
}

// resume goes on after a welcome where the last connection or the last bye
// stopped.
func (l *life) resume(moved, fresh bool) {
	kept := l.kept
	l.kept = nil
	for _, data := range kept {
		l.sendKept(data)
	}
	l.resumeInflight(moved, fresh)
	l.resumeOutboxes(moved, fresh)
	l.resumeQueries()
	l.watchIdle()
}

// fenced: for the newest hello it is the end. For an older one it may be late,
// so the host is asked.
func (l *life) fenced(f frame.Frame) {
	if f.Link >= l.no {
		l.fence()
		return
	}
	l.ask()
}

func (l *life) ping() {
	l.set(&l.pinging, l.PingEvery, l.ping)
	l.ask()
}

// ask says hello once more on the live connection, unless a hello is under way.
func (l *life) ask() {
	if l.linked() && l.next == nil && !l.live.greeting() {
		l.sayHello(l.live)
	}
}

// renew connects anew, also while the old connection lives. After a bye it waits
// for what comes of that.
func (l *life) renew() {
	if l.live != nil && l.stage != up {
		l.set(&l.redial, lastBackOff, l.renew)
		return
	}
	l.connect()
}

// drain renews within a time the host has given, spread so that not every runner
// comes at once. A quarter of the time is left for connecting; a renewal that is
// due earlier stays where it is.
func (l *life) drain(within time.Duration) {
	if l.linked() {
		l.renewIn(min(l.drawn(within*3/4), time.Until(l.renewBy)))
	}
}

// drawn is a time from 0 to below d.
func (l *life) drawn(d time.Duration) time.Duration {
	return time.Duration(l.Rand.Int64N(int64(max(d, 1))))
}

// cut takes note that a connection is gone, and sees to another.
func (l *life) cut(lk *link, err error) {
	if lk.dead {
		return
	}
	l.drop(lk, "lost")
	after := sequelOf(err)
	if lk.no < l.no && (after == fencedOff || after == stayAway) {
		after = comeBack // said before a hello that has not been answered: that decides
	}
	switch lk {
	case l.live:
		l.live = nil
		l.Log.Warn("connection to the host lost", "link", lk.no, "error", err)
		l.set(&l.giveUp, l.ReconnectFor, l.abandon)
		l.set(&l.loosen, looseAfter, l.loosenAll)
		l.cutAsleep()
		l.retry(after, err)
	case l.next:
		l.next = nil
		if l.live != nil {
			// The host may believe that this was the connection. Tell it otherwise.
			l.hello(l.live)
		}
		l.retry(after, err)
	}
}

// retry connects after a pause that grows with every failure, unless the host has
// said that it is of no use.
func (l *life) retry(after sequel, err error) {
	l.lost = err
	switch {
	case l.stage == lingering:
		return // nothing is left to say
	case after == fencedOff:
		l.fence()
		return
	case l.unwelcome(after) && l.live == nil:
		l.finish(session.Errorf(session.Invalid, "the relay does not take the runner of box %s", l.Box).Because(err))
		return
	case after == comeLater:
		l.failed = max(l.failed, longBackOff)
	}
	pause := min(firstBackOff<<min(l.failed, longBackOff), lastBackOff)
	l.failed++
	l.set(&l.redial, max(l.drawn(pause)+pause/10, min(askedToWait(err), longestWait)), l.renew)
}

// unwelcome says that the host has refused this runner for good: by saying so, or
// by refusing it again and again. While there is a connection, that is of use.
func (l *life) unwelcome(after sequel) bool {
	if after != comeRound {
		return after == stayAway
	}
	if time.Since(l.rounded) > roundsWithin {
		l.rounds, l.rounded = 0, time.Now()
	}
	l.rounds++
	return l.rounds >= maxRounds
}

func (l *life) abandon() {
	err := session.Errorf(session.Unavailable, "the relay could not be reached for %s", l.ReconnectFor)
	l.finish(err.Because(l.lost))
}

// drop closes a connection.
func (l *life) drop(lk *link, reason string) {
	lk.dead = true
	delete(l.open, lk)
	lk.answer.stop()
	lk.retire.stop()
	close(lk.gone)
	for _, o := range append(lk.queue, lk.current) {
		if o.keep {
			l.kept = append(l.kept, o.data)
		}
	}
	lk.queue = nil
	l.wg.Go(func() { _ = lk.conn.Close(reason) }) // it is given up in any case
}

// endLinks closes what is open, at the end of a life.
func (l *life) endLinks() {
	for lk := range l.open {
		l.drop(lk, "stopped")
	}
}

// carrying is the header of a connection with a pass, nil without.
func carrying(pass string) http.Header {
	if pass == "" {
		return nil
	}
	return http.Header{frame.PassHeader: {pass}}
}
