package box

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// counts is a result of the fake program.
type counts struct {
	Count, Life, Bytes int
	Said               json.RawMessage
}

func (r *rig) counted(stream string) (x counts) {
	r.t.Helper()
	commontest.OK(r.t, json.Unmarshal(r.result(stream), &x))
	return x
}

// asleep waits until a process sleeps and the box has saved it.
func (r *rig) asleep() {
	r.t.Helper()
	r.state(r.t, Stopped)
	commontest.Eventually(r.t, "the box is saved", r.idle)
}

func (r *rig) ends() {
	r.t.Helper()
	commontest.OK(r.t, r.Close(r.t.Context(), 0))
}

func TestMemoryLastsOverSleepsAndOverBoxes(t *testing.T) {
	a := newAsleep(t)
	count := 0
	for range 2 {
		r := a.box()
		for range 3 {
			count++
			if got := r.counted(r.call(strconv.Itoa(count), "count", `{}`)); got.Count != count || got.Life != count-1 {
				t.Fatalf("call %d: %+v", count, got)
			}
			r.asleep()
			commontest.EqualIn(t, "images", 1, len(a.images()))
		}
		r.ends()
	}
	r := a.box()
	for i, method := range []string{wire.MethodSubscribe, wire.MethodUnsubscribe} {
		r.result(r.as("s", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"uri":"x:/a"}}`, func(d *frame.Deliver) { d.Subscribed = []string{"x:/a"}[i:] }))
		r.asleep()
	}
	heard := r.heardOf("99")
	for method, n := range map[string]int{wire.MethodInitialize: 2, wire.MethodSubscribe: 1, wire.MethodUnsubscribe: 1} { // and of initialized
		commontest.EqualIn(t, "the process heard of "+method, n, strings.Count(heard, method))
	}
	if log := a.log.String(); strings.Contains(log, "lost") || strings.Contains(log, "started anew") {
		t.Error(log)
	}
	r.StopSession("s")
	r.nowKept(a, 0)
	r.ends()
	left, err := filepath.Glob(filepath.Join(a.dir, fmt.Sprintf("work-%d-*", a.gen)))
	if err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestMemoryLastsOverTheEndOfABox(t *testing.T) {
	a := newAsleep(t)
	r := a.box(func(s *Server) { s.Idle = time.Hour })
	r.counted(r.call("1", "count", `{}`))
	held := r.call("2", "hold", `{}`)
	asked := r.call("3", "ask", `{}`)
	r.event(t, asked)
	r.counted(r.call("4", "count", `{}`)) // so it has read the others
	r.ends()
	for _, of := range []string{held, asked} {
		commontest.EqualIn(t, "code", wire.CodeOutcomeUnknown, r.failure(of).Code)
	}
	next := a.box(func(s *Server) { s.Idle = time.Hour })
	if got := next.counted(next.call("2", "go", `{}`)); got.Life != 1 || got.Count < 4 || got.Count > 5 {
		t.Errorf("%+v", got)
	}
	commontest.Contains(t, "nobody told the process that its question is over", "response 1001", next.heardOf("5"))
}

func TestAProcessSleepsWhileItsCallsWaitForAHuman(t *testing.T) {
	a := newAsleep(t)
	r := a.box()
	first := r.counted(r.call("1", "count", `{}`))
	var calls, questions []string
	for i := range 2 {
		c := r.call(strconv.Itoa(2+i), "ask", `{}`)
		q, _ := wire.String(wire.Lookup(r.event(t, c).Raw, "id"))
		calls, questions = append(calls, c), append(questions, q)
	}
	for i, c := range calls {
		r.nowKept(a, 1) // also after the first answer: the other call still waits
		commontest.EqualIn(t, "the call waits", true, r.isOpen("s", c))
		for _, action := range []string{"accept", "decline"} {
			r.Answer("s", questions[i], []byte(`{"jsonrpc":"2.0","id":"`+questions[i]+`","result":{"action":"`+action+`"}}`))
		}
		if got := r.counted(c); got.Count != first.Count+i+1 || got.Life == 0 || !strings.Contains(string(got.Said), "accept") {
			t.Errorf("%+v %s", got, got.Said)
		}
	}
	commontest.Equal(t, first.Count+3, r.counted(r.call("4", "count", `{}`)).Count)
}

// A process that sleeps leaves its place to another one, and the time for the answer goes on.
func TestACallThatWaitsForAHumanHoldsNoPlaceAndHasAnEnd(t *testing.T) {
	a := newAsleep(t)
	r := a.box(func(s *Server) { s.AnswerTimeout, s.MaxProcesses = 2*time.Second, 1 })
	waits := r.call("1", "ask", `{}`)
	r.event(t, waits)
	r.nowKept(a, 1)
	r.counted(r.callAs("other", "1", "count", `{}`))
	r.fails(waits, "", "answer_timeout_sec")
}

// A box sleeps although its process has asked the client something outside of calls. The answer
// wakes the process, in this box or in a later one, and so does an answer that comes while the
// process falls asleep. Without the memory nobody hears of it.
func TestAnAnswerOutsideOfCallsWakesTheProcessThatAsked(t *testing.T) {
	a := newAsleep(t)
	r := a.box()
	asks := func(id string) (answer string) {
		t.Helper()
		r.result(r.call(id, "ask outside", `{}`))
		m, err := wire.Parse(r.event(t, "").Raw)
		commontest.OK(t, err)
		return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"action":"accept"}}`
	}
	answered := func(id, answer string, want int) {
		t.Helper()
		before := strings.Count(a.log.String(), "thawed")
		r.deliver(answer)
		r.deliver(answer) // again
		commontest.Eventually(t, "the process was woken", func() bool { return strings.Count(a.log.String(), "thawed") > before })
		commontest.EqualIn(t, "answers heard", want, strings.Count(r.heardOf(id), "response 10"))
	}
	answer := asks("1")
	r.asleep()
	answered("2", answer, 1)
	answer = asks("3")
	r.ends()
	r = a.box()
	answered("4", answer, 2)
	answer = asks("5")
	r.nod("s")
	answered("6", answer, 3)

	answer = asks("7")
	r.asleep()
	r.ends()
	commontest.OK(t, os.Remove(a.images()[0]))
	r = a.box()
	r.deliver(answer)
	r.state(t, Ready)
	commontest.EqualIn(t, "answers heard without memory", 0, strings.Count(r.heardOf("8"), "response 10"))
}

// nod has the process of a session sleep at once, whatever it does.
func (r *rig) nod(session string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.groupOf(r.sessions[session]); g != nil && g.current != nil && g.current.greeted {
		g.current.stop(nil)
	}
}

// The fake keeper reads and writes in parts, and stops between any two of them.
func TestEachRequestEndsOnceWheneverAProcessIsFrozen(t *testing.T) {
	a := newAsleep(t)
	r := a.box(func(s *Server) { s.Idle = time.Hour })
	r.counted(r.call("1", "count", `{}`))
	var calls []string
	for n := range 64 {
		calls = append(calls, r.call(strconv.Itoa(100+n), "hold", `{}`))
		if n%16 == 7 {
			r.nod("s")
		}
	}
	text := `"` + strings.Repeat("x", 1<<20) + `"`
	for n := range 12 { // the process is in the middle of a line
		calls = append(calls, r.call(strconv.Itoa(200+n), "count", text))
		r.nod("s")
	}
	last := r.counted(r.call("300", "go", `{}`))
	seen := map[int]bool{last.Count: true}
	for i, c := range calls {
		got := r.counted(c)
		if seen[got.Count] || i >= 64 && got.Bytes < 1<<20 {
			t.Errorf("call %d: %+v", i, got)
		}
		seen[got.Count] = true
	}
	commontest.EqualIn(t, "it was thawed", true, last.Life > 0)
	for _, v := range r.past {
		if e, ok := v.(frame.Event); ok && e.Final {
			t.Errorf("another end: %.200s", e.Raw)
		}
	}
	if log := a.log.String(); strings.Contains(log, "lost") {
		t.Error(log)
	}
}

// The process starts without memory, the log says why, and the client sees nothing of it. Package
// memory tests which images are never used.
func TestMemoryThatCannotBeUsedIsLostWithoutAnError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		keeper, next string // how the keeper behaves, and the one of the next box
		spoil        bool
		why          string
		code         func() string // of the next box
	}{
		"edited":        {code: func() string { return "2" }, why: "the programs it was started from have changed"},
		"damaged":       {spoil: true, why: "cut"},
		"unfit":         {next: "unfit", why: "a file of it is gone"},
		"dies":          {next: "dies at the thaw", why: "the keeper has ended"},
		"cannot freeze": {keeper: "cannot freeze", why: "it has a device open"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsleep(t)
			keeper := func(how string) func(*Server) { return func(s *Server) { s.Env[keeperHow] = how } }
			r := a.box(keeper(test.keeper))
			r.counted(r.call("1", "count", `{}`))
			r.asleep()
			r.ends()
			if test.spoil {
				commontest.OK(t, os.Truncate(a.images()[0], 10))
			}
			next := a.box(keeper(test.next), func(s *Server) { s.Idle, s.Code = time.Hour, test.code })
			if got := next.counted(next.call("2", "count", `{}`)); got.Count != 1 || got.Life != 0 {
				t.Errorf("%+v", got)
			}
			commontest.Equal(t, 1, strings.Count(a.log.String(), test.why))
			commontest.EqualIn(t, "the image is still there", 0, len(a.images()))
		})
	}
}

func TestACallThatWaitsEndsWithItsMemory(t *testing.T) {
	a := newAsleep(t)
	r := a.box()
	waits := r.call("1", "ask", `{}`)
	r.event(t, waits)
	r.nowKept(a, 1)
	commontest.OK(t, os.Truncate(a.images()[0], 10))
	if got := r.counted(r.call("2", "count", `{}`)); got.Count != 1 || got.Life != 0 {
		t.Errorf("%+v", got)
	}
	commontest.EqualIn(t, "code", wire.CodeOutcomeUnknown, r.fails(waits, "", "memory").Code)
}

// An operator who stops a process wants a fresh one. At the end of dormouse run, it sleeps.
func TestAProcessThatAnOperatorStopsKeepsNoMemory(t *testing.T) {
	for keep, kept := range map[bool]int{false: 0, true: 1} {
		a := newAsleep(t)
		r := a.box(func(s *Server) { s.Idle = time.Hour })
		r.counted(r.call("1", "count", `{}`))
		r.Halt(frame.Halt{In: time.Minute.Milliseconds(), Keep: keep})
		r.nowKept(a, kept)
		commontest.EqualIn(t, "calls in memory", 1+kept, r.counted(r.call("2", "count", `{}`)).Count)
	}
}

// nowKept waits until no process is there, and n images are kept.
func (r *rig) nowKept(a *asleep, n int) {
	r.t.Helper()
	commontest.Eventually(r.t, "all sleep", func() bool { return len(r.Processes()) == 0 && len(a.images()) == n })
}

// heardOf lists what the fake program has heard of so far.
func (r *rig) heardOf(id string) string {
	r.t.Helper()
	return string(r.result(r.call(id, "lines", `{}`)))
}

// keeperHow names the variable that says how a fake keeper behaves.
const keeperHow = "FAKE_KEEPER"

// program is a server whose whole memory is this struct. A fake keeper freezes it between any
// two system calls.
type program struct {
	In, Out []byte // the beginning of a line, and what it has not written yet
	Count   int
	Secret  string
	Life    int // how often it was thawed
	Lines   []string
	Held    []json.RawMessage          // calls that wait for "go"
	Asks    map[string]json.RawMessage // calls by the ids of their questions
	N       int
}

// sandboxed is a fake keeper with its program. It speaks the protocol of package memory.
func sandboxed() {
	control := os.NewFile(ControlFile, "control")
	in := bufio.NewReaderSize(control, 64<<10)
	say := func(text string) {
		if _, err := control.WriteString(text + "\n"); err != nil {
			os.Exit(94)
		}
	}
	say(`{"fit":{"build":"1","arch":"fake"}}`)
	p := &program{Secret: os.Getenv("API_KEY"), Asks: map[string]json.RawMessage{}}
	for begun := false; !begun; {
		line, err := in.ReadString('\n')
		switch {
		case err != nil:
			os.Exit(0)
		case strings.Contains(line, "thaw"):
			var image []byte
			for {
				var n [4]byte
				if _, err := io.ReadFull(in, n[:]); err != nil {
					os.Exit(93)
				}
				chunk := make([]byte, binary.BigEndian.Uint32(n[:]))
				if _, err := io.ReadFull(in, chunk); err != nil {
					os.Exit(93)
				}
				if image = append(image, chunk...); len(chunk) == 0 {
					break
				}
			}
			switch os.Getenv(keeperHow) {
			case "unfit":
				say(`{"unfit":"a file of it is gone"}`)
				continue
			case "dies at the thaw":
				os.Exit(92)
			}
			if json.Unmarshal(image, p) != nil {
				os.Exit(91)
			}
			p.Life++
			begun = true
		default:
			begun = true
		}
	}
	say(`{"begun":true}`)
	for {
		polled := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}, {Fd: ControlFile, Events: unix.POLLIN}}
		timeout := -1
		if len(p.Out) > 0 {
			timeout = 0
		}
		_, _ = unix.Poll(polled, timeout)
		if polled[1].Revents&unix.POLLIN != 0 {
			line, err := in.ReadString('\n')
			if err == nil && strings.Contains(line, "freeze") {
				p.freeze(say, control)
			}
		}
		if polled[0].Revents != 0 {
			b := make([]byte, 1+rand.IntN(32<<10))
			n, err := os.Stdin.Read(b)
			if err != nil {
				_, _ = os.Stdout.Write(p.Out)
				os.Exit(0)
			}
			p.take(b[:n])
		}
		if n := len(p.Out); n > 0 {
			n = 1 + rand.IntN(min(n, 4<<10))
			write(string(p.Out[:n]))
			p.Out = p.Out[n:]
		}
	}
}

func (p *program) freeze(say func(string), control io.Writer) {
	if os.Getenv(keeperHow) == "cannot freeze" {
		say(`{"failed":"it has a device open\nand more"}`)
		os.Exit(3)
	}
	image, err := json.Marshal(p)
	if err != nil {
		os.Exit(90)
	}
	say(`{"image":true}`)
	for len(image) > 0 {
		n := min(len(image), 1<<20)
		if _, err := control.Write(append(binary.BigEndian.AppendUint32(nil, uint32(n)), image[:n]...)); err != nil {
			os.Exit(90)
		}
		image = image[n:]
	}
	if _, err := control.Write(make([]byte, 4)); err != nil {
		os.Exit(90)
	}
	say(`{"frozen":true}`)
	os.Exit(0)
}

func (p *program) take(b []byte) {
	p.In = append(p.In, b...)
	for {
		line, rest, whole := bytes.Cut(p.In, []byte("\n"))
		if !whole {
			return
		}
		line = bytes.Clone(line)
		p.In = bytes.Clone(rest)
		m, err := wire.Parse(line)
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot read a line:", err)
			os.Exit(99)
		}
		if m.Method != "" {
			p.Lines = append(p.Lines, m.Method)
		} else {
			p.Lines = append(p.Lines, "response "+string(m.ID))
		}
		p.hear(m)
	}
}

func (p *program) answer(id json.RawMessage, result string) {
	p.Out = append(append(p.Out, wire.ResultResponse(id, json.RawMessage(result))...), '\n')
}

func (p *program) hear(m wire.Message) {
	switch {
	case m.Method == wire.MethodInitialize:
		p.answer(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`)
	case m.Kind == wire.Response:
		if call, ok := p.Asks[string(m.ID)]; ok {
			delete(p.Asks, string(m.ID))
			p.Count++
			p.answer(call, fmt.Sprintf(`{"count":%d,"life":%d,"said":%s}`, p.Count, p.Life, m.Raw))
		}
	case m.Method != wire.MethodToolsCall:
		if m.Kind == wire.Request {
			p.answer(m.ID, `{}`)
		}
	default:
		p.call(m)
	}
}

func (p *program) call(m wire.Message) {
	name, _ := wire.String(wire.Lookup(m.Params, "name"))
	switch name {
	case "count":
		p.Count++
		p.answer(m.ID, fmt.Sprintf(`{"count":%d,"life":%d,"bytes":%d}`, p.Count, p.Life, len(m.Raw)))
	case "hold":
		p.Held = append(p.Held, m.ID)
	case "go":
		for _, id := range append(p.Held, m.ID) {
			p.Count++
			p.answer(id, fmt.Sprintf(`{"count":%d,"life":%d}`, p.Count, p.Life))
		}
		p.Held = nil
	case "ask", "ask outside":
		p.N++
		id := strconv.Itoa(1000 + p.N)
		if name == "ask" {
			p.Asks[id] = m.ID
		} else {
			p.answer(m.ID, `{}`)
		}
		p.Out = append(append(p.Out, wire.NewRequest(json.RawMessage(id), wire.MethodElicit, json.RawMessage(`{"message":"?"}`))...), '\n')
	case "lines":
		all, _ := json.Marshal(p.Lines)
		p.answer(m.ID, string(all))
	}
}

// asleep is a place where boxes of one name keep the memory of their processes.
type asleep struct {
	t   *testing.T
	dir string
	gen int64
	log *commontest.Lines
}

func newAsleep(t *testing.T) *asleep {
	t.Helper()
	return &asleep{t: t, dir: t.TempDir(), log: &commontest.Lines{}}
}

func (a *asleep) store() string { return filepath.Join(a.dir, "snapshots") }

func (a *asleep) images() []string {
	a.t.Helper()
	all, err := filepath.Glob(filepath.Join(a.store(), "*", "*.memory"))
	commontest.OK(a.t, err)
	return all
}

// box returns the next runner of the box.
func (a *asleep) box(change ...func(*Server)) *rig {
	a.t.Helper()
	a.gen++
	root, err := memory.OpenRoot(filepath.Join(a.dir, "key"))
	commontest.OK(a.t, err)
	key, err := root.Tenant("t")
	commontest.OK(a.t, err)
	keeper := snapshot.NewKeeper(snapshot.Config{
		Store: snapshot.NewFolder(a.store()), Generation: a.gen, Key: func(owner string) string { return snapshot.Key("box", owner) },
	})
	gen := a.gen
	r := newRig(a.t, "kept", append([]func(*Server){func(s *Server) {
		s.Provisioner = &placing{a: a, gen: gen, places: map[string]string{}}
		s.Keeper, s.Images = keeper, &memory.Kept{Store: keeper, Key: key, Box: "box", Generation: gen}
		s.Idle = 20 * time.Millisecond
		s.Env["API_KEY"] = "hunter2-hunter2"
	}}, change...)...)
	r.log = slog.New(slog.NewTextHandler(a.log, nil))
	return r
}

// placing gives each process a workspace of its own, and fills it from the store once.
type placing struct {
	a   *asleep
	gen int64

	mu     sync.Mutex
	places map[string]string
}

func (p *placing) Provision(ctx context.Context, name string, _ func(provision.Progress), restore provision.Restore) (provision.Launch, error) {
	l := asConfigured(p.a.t)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.Workspace = p.places[name]; l.Workspace == "" {
		l.Workspace = filepath.Join(p.a.dir, fmt.Sprintf("work-%d-%x", p.gen, name))
		p.places[name] = l.Workspace
		if err := os.Mkdir(l.Workspace, 0o755); err != nil {
			return l, err
		}
		if _, err := restore(ctx, l.Workspace); err != nil {
			return l, err
		}
	}
	return l, nil
}

func (p *placing) Remove(name string) error {
	return os.RemoveAll(filepath.Join(p.a.dir, fmt.Sprintf("work-%d-%x", p.gen, name)))
}
