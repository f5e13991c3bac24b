package box

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// ControlFile is the file descriptor of the control socket of a keeper (see package memory), if
// [Server].Images is set.
const ControlFile = 5

// nap is what a process needs to sleep with its memory. When a process sleeps, its OS process has
// ended. If its conversation has an open request, another [process], called its heir, takes over
// the conversation and waits until a message needs it. [Box].mu guards sent, over, kept and
// discard; the channels order the accesses to the other fields.
type nap struct {
	control *memory.Control // speaks to the keeper; nil if there is none, or if it cannot freeze any more
	image   memory.Process  // names the image, and says which process may get it

	drowsy  chan struct{} // closed when [processRun.freeze] is to begin
	sent    int64         // how many bytes had been queued for the process when drowsy was closed
	over    bool          // freeze has returned
	kept    bool          // freeze has succeeded: an image of the memory is in the store
	size    int64         // size of that image in bytes
	dead    frozen        // requests and questions that the box has ended without telling the process
	discard bool          // the memory must not be kept

	heard chan struct{} // closed when the box has taken all output of the process
	rest  []byte        // the beginning of an output line that the process had not ended when it was frozen
	cut   bool          // rest was too long, so the process cannot be kept
	said  []byte        // the field rest of the process whose memory this one got back, nil for none
	heir  bool          // the process has taken over the conversation of a process that sleeps

	needed chan struct{} // closed once a message needs the process
	lost   string        // why the process started without the memory that was saved, "" if none was lost
}

func (n *nap) begin() {
	n.drowsy, n.heard, n.needed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	close(n.needed)
}

// asleep reports whether the process is an heir (see [nap]) that waits until a message needs it.
func (n *nap) asleep() bool { return !isClosed(n.needed) }

// rouse makes the process start, if it is an heir that waits.
func (n *nap) rouse() {
	if n.asleep() {
		close(n.needed)
	}
}

func (n *nap) close() {
	if n.control != nil {
		n.control.Close()
		n.control = nil
	}
}

// # Falling asleep

// waits reports whether the process may sleep although requests are open: it can be frozen, and
// each of the requests waits for an answer of its client.
func (p *process) waits() bool {
	return p.state == ready && p.nap.control != nil && len(p.held.lines) == 0 && p.conv.waits()
}

// bury records in n.dead the requests that the box ends while the process still works on them.
// After the process is thawed, it may still answer them.
func (n *nap) bury(p *process) {
	if p.child == nil || n.control == nil || p.failed == nil || isClosed(n.drowsy) {
		return
	}
	for _, r := range p.conv.requests {
		n.dead.Calls = append(n.dead.Calls, r.number, r.sent)
	}
	n.dead.Questions = slices.DeleteFunc(p.conv.frozenQuestions(), func(q frozenQuestion) bool { return !q.OfCall })
}

// dismiss makes the process end: it starts the freeze if the memory can be saved, and terminates the
// process if not.
func (p *process) dismiss() {
	switch n := &p.nap; {
	case p.child == nil || isClosed(n.drowsy) && !n.over:
	case n.control == nil || isClosed(n.drowsy) || n.discard || !p.greeted || p.left || p.state == gone || p.replaced != "" || p.keeping.over(),
		p.failed != nil && p.failed.data.Phase != PhaseBoxUnavailable:
		p.child.Terminate()
	default:
		n.sent = p.queue.Pushed()
		close(n.drowsy)
	}
}

// freeze saves the memory of the process together with its workspace. The process ends, even if
// freeze fails.
func (r *processRun) freeze() {
	p := r.p
	b, begun := p.box, time.Now()
	log := b.log.With("server", b.server.Name, "process", p.group.id)
	ctx, done := context.WithTimeout(b.saves, saveTime)
	defer done()
	size, err := b.server.Images.Save(ctx, p.nap.image, r.takeMemory)
	if err != nil {
		log.Warn("memory lost", "why", b.hide.Text(err.Error()))
	} else {
		log.Info("frozen", "mb", megabytes(size), "ms", time.Since(begun).Milliseconds())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p.nap.over, p.nap.kept, p.nap.size = true, err == nil, size
	if err != nil && p.failed == nil && !p.conv.idle() {
		p.failed = b.interrupted("its process slept while a call waited, and its memory could not be kept")
	}
	p.child.Terminate()
}

// takeMemory writes the memory of the process to a writer, and returns the state of its
// conversation.
func (r *processRun) takeMemory(ctx context.Context, to io.Writer) (any, error) {
	p := r.p
	within, done := context.WithTimeout(ctx, memory.FreezeWithin)
	defer done()
	p.queue.Pause(p.child.Interrupt)
	unread, err := p.child.Reread()
	if err != nil {
		return nil, err
	}
	if err := p.nap.control.Freeze(within, to); err != nil {
		_, _ = unread() // to close the pipe
		return nil, err
	}
	for _, over := range []<-chan struct{}{p.child.Exited(), p.nap.heard} {
		select {
		case <-over:
		case <-within.Done():
			_, _ = unread()
			return nil, errors.New("it did not end in time, or its output was not taken")
		}
	}
	input, err := unread()
	if err == nil && p.nap.cut {
		err = errors.New("it was writing a line over the limit")
	}
	if err == nil {
		err = p.keeping.given.clear()
	}
	if err != nil {
		return nil, err
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	return p.frozen(input), nil
}

// frozen is the state of a conversation with a process that sleeps. The image stores it as JSON.
type frozen struct {
	Unread []byte `json:"unread"` // bytes that the box has sent and the process has not read
	Said   []byte `json:"said"`   // the beginning of an output line whose end the process has not written

	Stateless bool            `json:"stateless,omitempty"`
	Version   string          `json:"version,omitempty"`
	Greeting  json.RawMessage `json:"greeting"`          // the process's answer to the first message
	Tasks     bool            `json:"tasks,omitempty"`   // the process supports tasks of 2025-11-25
	Needed    []string        `json:"needed,omitempty"`  // tools that can be called only as a task
	All       bool            `json:"all,omitempty"`     // Needed has all such tools
	Changes   int64           `json:"changes,omitempty"` // number of the box's request for notifications of changes, 0 for none
	Notes     bool            `json:"notes,omitempty"`   // the process answers notifications with errors

	Own       map[int64]string `json:"own,omitempty"`       // methods of the box's own open requests, by number
	Numbers   []int64          `json:"numbers,omitempty"`   // numbers of all own requests so far; no other request may get one of them
	Calls     []int64          `json:"calls,omitempty"`     // numbers of the clients' open requests
	Questions []frozenQuestion `json:"questions,omitempty"` // the open questions, in the order in which they were asked
	Asked     int64            `json:"asked,omitempty"`     // how many questions the process has asked so far

	Level         string   `json:"level,omitempty"`
	Subscriptions []string `json:"subscriptions,omitempty"`
}

type frozenQuestion struct {
	Visible string          `json:"visible"`
	ID      json.RawMessage `json:"id"`
	Token   json.RawMessage `json:"token,omitempty"`
	Session string          `json:"session,omitempty"` // "" if the process has a single session
	OfCall  bool            `json:"of_call,omitempty"`
}

// frozen returns the state of the conversation with a process that was just frozen. The argument
// input is what the process had not read of its stdin. Requests that were still in the queue are
// left out, because the next process gets them anew.
func (p *process) frozen(input []byte) *frozen {
	begun, lines := p.queue.Take()
	f := &frozen{
		Unread: append(input, begun...), Said: p.nap.rest, Notes: p.notes.answers, Own: map[int64]string{}, Asked: p.conv.questionN,
		Numbers: slices.Collect(maps.Keys(p.conv.kept)), Level: p.group.level(), Subscriptions: p.group.subscriptions(),
	}
	at := p.queue.Written() + int64(len(begun))
	requests := map[int64]*request{}
	for _, r := range p.conv.requests {
		requests[r.given.at] = r
	}
	for _, line := range lines {
		if r := requests[at]; r != nil && r.passed != nil {
			p.conv.passed.Remove(r.passed)
			r.passed = nil // the next process gets this request
		} else {
			f.Unread = append(append(f.Unread, line...), '\n')
		}
		at += int64(len(line)) + 1
	}
	switch s := p.proto.(type) {
	case *stateless:
		f.Stateless, f.Greeting, f.Changes = true, s.discover, s.changes
	case *sessionful:
		f.Version, f.Greeting = s.version, s.result
		if t := s.tasks; t != nil {
			f.Tasks, f.Needed, f.All = true, slices.Sorted(maps.Keys(t.needed)), t.all
		}
	}
	for n, own := range p.own {
		f.Own[n] = own.method
	}
	for _, r := range p.conv.requests {
		f.Calls = append(f.Calls, r.number, r.sent)
	}
	f.Calls = append(f.Calls, p.nap.dead.Calls...)
	f.Questions = p.conv.frozenQuestions()
	for _, q := range p.nap.dead.Questions {
		if p.conv.questions[q.Visible] == nil {
			f.Questions = append(f.Questions, q)
		}
	}
	return f
}

func (c *conversation) frozenQuestions() []frozenQuestion {
	var list []frozenQuestion
	for _, q := range c.questionsInOrder() {
		f := frozenQuestion{Visible: q.visible, ID: q.id, Token: q.token, OfCall: q.call != nil}
		if q.session != nil {
			f.Session = q.session.id
		}
		list = append(list, f)
	}
	return list
}

// passOn makes another process, the heir, take over the conversation of a process that sleeps. It
// does nothing if no request is open and nothing was sent to the process while it fell asleep.
func (r *processRun) passOn() {
	p := r.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if !p.nap.kept || p.box.closed || p.failed != nil || p.keeping.over() || p.conv.idle() && p.queue.Pushed() == p.nap.sent {
		return
	}
	next := p.group.current
	if next == nil {
		h := p.group.next()
		next = h.p
		next.nap.needed = make(chan struct{})
		p.group.begin(h, nil)
	}
	next.inherit(p)
}

// inherit gives p the conversation and the waiting lines of sleeper, a process that sleeps.
func (p *process) inherit(sleeper *process) {
	c, fresh := sleeper.conv, p.conv
	_, late := sleeper.queue.Take() // lines that were queued after the freeze: answers and cancellations
	held := p.held.lines
	p.held = heldLines{}
	for _, line := range late {
		p.held.add(heldLine{line: line})
	}
	for _, r := range c.inOrder() {
		if r.passed == nil && r.given.line != nil {
			p.held.add(heldLine{number: r.number, line: r.given.line})
		}
		r.given.at, r.before = -1, written{}
		if r.passed != nil && r.asked == 0 {
			p.nap.rouse() // the process was at work on the request when it was frozen, and has to go on
		}
	}
	for _, h := range held {
		p.held.add(h)
	}
	for _, r := range fresh.inOrder() { // no request of c has the same number, see group.draw
		c.came++
		r.order = c.came
		c.requests[r.number], c.byID[clientID{r.stream.session, idKey(r.id)}] = r, r
	}
	maps.Copy(c.kept, fresh.kept)
	first := p.first
	p.converse(c)
	p.first = first
	sleeper.converse(newConversation(p.box.draw, p.box.server.Scope.wide(), p.group))
	p.nap.heir = true
	p.clock.take(c)
	if len(p.held.lines) > 0 || sleeper.queue.Pushed() != sleeper.nap.sent {
		p.nap.rouse()
	}
}

// # Waking

// begin starts the OS process. If a keeper thaws an image of the memory, begin returns the state of
// the conversation, or else nil.
func (r *processRun) begin(l launch) (child, *frozen, error) {
	p := r.p
	from := append([]string{l.Command.Path}, l.Command.Args...)
	if p.box.server.Code != nil {
		from = append(from, p.box.server.Code())
	}
	sum := sha256.Sum256([]byte(strings.Join(from, "\x00")))
	p.box.mu.Lock()
	p.nap.image = memory.Process{
		Name: p.group.id, Owner: p.keeping.owner(), Workspace: l.keep, Staged: l.staged, Install: "sha256:" + hex.EncodeToString(sum[:]),
	}
	p.box.mu.Unlock()
	for anew := false; ; anew = true {
		c, err := r.spawn(l)
		if err != nil || p.nap.control == nil {
			return c, nil, err
		}
		f, err := r.wake(anew)
		if err == nil || anew {
			return c, f, nil
		}
		r.lost(err)
		c.Kill()
		<-c.Exited()
		c.Release()
		p.output.refused.close()
		p.nap.close()
	}
}

// megabytes returns a size in MiB, rounded up.
func megabytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// forgetImage deletes the image of the memory if nap.discard is set, even the image of an earlier
// process.
func (p *process) forgetImage() {
	p.box.mu.Lock()
	discard, owner := p.nap.discard && p.box.server.Images != nil, p.keeping.owner()
	p.box.mu.Unlock()
	if discard {
		// After an error the image stays, and the process will wake with its old memory.
		_ = p.box.server.Images.Store.ClaimImage(owner, "")
	}
}

// wakeTime limits how long a keeper may take to thaw an image.
const wakeTime = 30 * time.Second

// wake makes the keeper thaw the memory of the process. If anew is true or no image fits, the keeper
// starts the program instead. After an error the keeper cannot be used any more.
func (r *processRun) wake(anew bool) (*frozen, error) {
	p := r.p
	ctx, done := context.WithTimeout(context.Background(), p.box.server.StartupTimeout)
	defer done()
	wanted, cancel := context.WithTimeout(p.wanted, p.box.server.StartupTimeout)
	defer cancel()
	fit, err := p.nap.control.Fit(wanted)
	if err != nil {
		p.nap.close()
		return nil, nil // the end of the process is handled like that of any other
	}
	p.nap.image.Fit = fit
	if !anew {
		f, err := r.thaw(ctx)
		if f != nil || err != nil {
			return f, err
		}
	}
	if err := p.nap.control.Start(ctx); err != nil {
		p.nap.close()
	}
	return nil, nil
}

// thaw looks for an image of the memory, claims it and makes the keeper thaw it. If it returns nil
// and no error, the keeper must start the program instead. After an error the keeper cannot be
// used any more.
func (r *processRun) thaw(ctx context.Context) (*frozen, error) {
	p := r.p
	begun := time.Now()
	found, err := p.box.server.Images.Find(p.nap.image)
	if err != nil {
		if !errors.Is(err, snapshot.ErrNone) {
			r.lost(err)
		}
		return nil, nil
	}
	defer found.Close()
	f := &frozen{}
	if err := json.Unmarshal(found.State, f); err != nil {
		r.lost(errors.New("the state of its conversation cannot be read"))
		return nil, nil
	}
	image, err := found.Claim()
	if err != nil {
		r.lost(err)
		return nil, nil
	}
	defer func() { _ = image.Close() }() // nothing was written
	within, done := context.WithTimeout(ctx, wakeTime)
	defer done()
	err = p.nap.control.Thaw(within, image)
	_, unfit := errors.AsType[*memory.UnfitError](err)
	switch {
	case err == nil:
		p.box.log.Info("thawed", "server", p.box.server.Name, "process", p.group.id,
			"age_s", int(time.Since(found.Saved).Seconds()), "mb", megabytes(found.Size), "ms", time.Since(begun).Milliseconds())
		return f, nil
	case unfit:
		r.lost(err)
		return nil, nil
	}
	return nil, err
}

// lost logs why the process starts without the memory that was saved.
func (r *processRun) lost(why error) {
	p := r.p
	text := p.box.hide.Text(why.Error())
	p.box.log.Warn("memory lost", "server", p.box.server.Name, "process", p.group.id, "why", text)
	p.output.log.Note("memory lost: %s", text)
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.nap.lost = text
}

// forgetMemory ends the open requests and questions of a process that slept, because its memory is
// lost and a fresh process cannot answer them.
func (p *process) forgetMemory() {
	if !p.nap.heir {
		return
	}
	f := p.box.interrupted("the memory of its process was lost while that slept")
	for _, r := range p.conv.inOrder() {
		if r.passed != nil {
			p.conv.end(r, p.fill(f).unanswered(r))
		}
	}
	clear(p.conv.questions)
	clear(p.conv.asked)
	p.held.lines = slices.DeleteFunc(p.held.lines, func(h heldLine) bool {
		m, err := wire.Parse(h.line)
		return h.number == 0 && h.of == nil && (err != nil || m.Kind == wire.Response || m.Method == wire.NotifyCancelled)
	})
}

// thawed continues the conversation with a process that has its memory again. thawed sends the
// settings that have changed meanwhile, and then the waiting messages.
func (p *process) thawed(f *frozen) {
	if f.Stateless {
		p.proto = &stateless{p: p, discover: f.Greeting, changes: f.Changes}
	} else {
		s := &sessionful{p: p, version: f.Version, result: f.Greeting}
		if f.Tasks {
			s.tasks = &legacyTasks{p: p, needed: map[string]bool{}, all: f.All}
			for _, name := range f.Needed {
				s.tasks.needed[name] = true
			}
		}
		p.proto = s
	}
	for n, method := range f.Own {
		p.own[n] = &ownRequest{method: method}
	}
	for _, n := range slices.Concat(f.Numbers, f.Calls) {
		if p.conv.requests[n] == nil && p.conv.renamed[n] == nil {
			p.conv.kept[n] = true
		}
	}
	p.notes.answers = f.Notes
	p.nap.said = f.Said
	p.queue.Prepend(f.Unread)
	p.greeted = true
	p.to(ready)
	p.box.starts.success()
	p.report(Ready, nil)
	p.group.untold, p.group.isAnew = nil, false
	if !p.nap.heir {
		p.asks(f)
	}
	p.tellHandshake(f.Version)
	p.proto.tellSettings(f.Level, f.Subscriptions)
	p.answerInitialize()
	p.sendHeld()
	p.clock.quiet()
	if p.waits() {
		p.clock.rest()
	}
}

// asks restores the open questions of a process that slept. If the call or the session of a
// question has ended, the process gets an error as the answer.
func (p *process) asks(f *frozen) {
	p.conv.questionN = max(p.conv.questionN, f.Asked)
	for i, q := range f.Questions {
		s := p.box.sessions[q.Session]
		switch {
		case q.OfCall, q.Session != "" && s == nil:
			p.write(wire.ErrorResponse(q.ID, &wire.Error{Code: wire.CodeInternal, Message: "the call or the session that this belongs to has ended"}))
		default:
			own := &question{visible: q.Visible, id: q.ID, token: q.Token, order: int64(i) - int64(len(f.Questions)), session: s}
			p.conv.questions[q.Visible], p.conv.asked[idKey(q.ID)] = own, own
		}
	}
}
