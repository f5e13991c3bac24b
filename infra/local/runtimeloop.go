package local

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/loop"
)

// looped is one connection of a process that takes its invocations by way of package
// loop. While it is idle nobody waits at it: who invokes the function writes and reads
// itself, which saves every invocation two changes of goroutine.
type looped struct {
	api  *runtimeAPI
	inst *instance
	conn net.Conn
	link *loop.Conn
	// reading is held from when an invocation is delivered until the beginning of its
	// answer is taken.
	reading sync.Mutex
}

// loop takes a connection over.
func (a *runtimeAPI) loop(w http.ResponseWriter, i *instance) {
	<-i.spawned
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuseCall(w, http.StatusInternalServerError, "NotTakenOver", err.Error())
		return
	}
	link, err := loop.NewConn(conn)
	if err != nil {
		_ = conn.Close() // the process is dying, and its end settles everything
		return
	}
	l := &looped{api: a, inst: i, conn: conn, link: link}
	i.fn.mu.Lock()
	if !i.fn.instances[i] {
		_ = conn.Close()
	}
	i.loops = append(i.loops, l)
	i.fn.mu.Unlock()
	l.park()
}

// park offers the connection for the next invocation. If one waits, it is served in
// the background.
func (l *looped) park() {
	f, i := l.inst.fn, l.inst
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.instances[i] || i.ending() {
		return
	}
	f.arrive(i)
	if len(f.waiting) == 0 {
		f.idle = append(f.idle, &poll{inst: i, loop: l})
		return
	}
	inv := f.waiting[0]
	f.waiting[0] = nil
	f.waiting = f.waiting[1:]
	f.assign(inv, i)
	go l.serve(context.Background(), inv)
}

// serve hands an invocation out, and returns when its result is there or will come
// without the caller, or ctx has ended. A connection that breaks is one of a dying
// process, whose end settles everything.
func (l *looped) serve(ctx context.Context, inv *invocation) {
	f := l.inst.fn
	l.reading.Lock()
	if _, ok := f.deliver(inv); !ok {
		l.reading.Unlock()
		return
	}
	err := l.link.Hand(loop.Invocation{
		ID: inv.id, ARN: functionARN(f.Name), Trace: newTraceID(inv.started),
		Deadline: inv.started.Add(f.Timeout), Payload: inv.payload,
	})
	if err != nil {
		l.reading.Unlock()
		return
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		l.link.Interrupt()
	})
	err = l.link.Await()
	if stop() {
		l.finish(inv, err)
		return
	}
	go func() {
		<-interrupted
		l.link.Resume()
		l.finish(inv, l.link.Await())
	}()
}

// finish takes the answer, err if there is none.
func (l *looped) finish(inv *invocation, err error) {
	f := l.inst.fn
	var answer *loop.Answer
	if err == nil {
		answer, err = l.link.Answer()
	}
	taken := err == nil && f.take(l.inst, inv.id) != nil
	l.reading.Unlock()
	if !taken {
		return
	}
	body, whole := answer.Whole()
	switch {
	case answer.Failed != nil:
		f.complete(inv, true)
		inv.fail(reported(inv, answer.Failed))
		l.again()
	case whole:
		f.complete(inv, false)
		if inv.claim() {
			inv.result <- result{answer: &Invocation{ContentType: answer.ContentType, Body: wholeBody{bytes.NewReader(body), body}}}
		}
		said := l.link.Said()
		l.park()
		l.tell(said)
	default:
		go l.stream(inv, answer)
	}
}

// drain returns when the beginning of an answer that a dead process has left behind is
// taken.
func (l *looped) drain() {
	_ = l.conn.SetReadDeadline(time.Now().Add(deathWait))
	l.reading.Lock()
	defer l.reading.Unlock()
}

// stream passes an answer on while it comes.
func (l *looped) stream(inv *invocation, answer *loop.Answer) {
	from := incoming{contentType: answer.ContentType, body: answer, broken: func() *FunctionError {
		if r := answer.Broken(); r != nil {
			return reported(inv, r)
		}
		return nil
	}}
	if l.api.response(l.inst, inv, from) {
		l.again()
	}
}

// again parks the connection when the process is ready.
func (l *looped) again() {
	if l.link.Ready() == nil {
		said := l.link.Said()
		l.park()
		l.tell(said)
	}
}

// tell passes on what the process has said with the end of an invocation, as if it had
// written it to stderr.
func (l *looped) tell(said []byte) {
	f := l.inst.fn
	if f.pool.cfg.Output == nil {
		return
	}
	for line := range bytes.Lines(said) {
		f.pool.cfg.Output(f.Name, outputLine(line))
	}
}

func reported(inv *invocation, r *loop.Report) *FunctionError {
	return &FunctionError{Function: inv.fn.Name, RequestID: inv.id, Type: r.Type, Message: r.Message}
}

// wholeBody is the body of an answer of which nothing has to be waited for.
type wholeBody struct {
	*bytes.Reader
	all []byte
}

func (wholeBody) Close() error { return nil }
