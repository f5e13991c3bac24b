package box

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// RefusalsFile is the descriptor on which the process of a server with [Server].Refusals says
// what its network refuses: a line of text for each refusal, before the server meets it.
const RefusalsFile = 4

const (
	saidAgain   = time.Second // the network says the same refusal at most once in this time
	maxRefusals = 64          // refusals of a process that are kept, and that the sink hears of
	mostSaid    = 3           // refusals that one error names
)

// refusals has what the network of a process refused. It has a lock of its own.
type refusals struct {
	from *os.File // nil if the process has no network that reports refusals

	mu   sync.Mutex
	rest []byte               // the beginning of a line whose end has not come
	last map[string]time.Time // by text, without secrets
	told int                  // how many refusals the sink has heard of
}

// open makes a pipe and returns the end into which the network of the process writes. The
// caller closes it.
func (f *refusals) open() (theirs *os.File, err error) {
	f.from, theirs, err = os.Pipe()
	return theirs, err
}

// close ends a call of hear that waits.
func (f *refusals) close() {
	if f.from != nil {
		_ = f.from.Close() // it was only read
	}
}

// hear returns the lines that the network has written since the last call, and which of them the
// sink should hear of. If there are none and wait is true, hear waits for one. over says that there
// will be no more.
func (f *refusals) hear(wait bool, hide func(string) string) (said, fresh []string, over bool) {
	conn, err := f.from.SyscallConn()
	if err != nil {
		return nil, nil, true
	}
	take := func(fd uintptr) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for {
			b := make([]byte, 4<<10)
			n, err := unix.Read(int(fd), b) //nolint:gosec // a descriptor is no large number
			switch {
			case err == unix.EINTR:
				continue
			case n <= 0:
				over = err != unix.EAGAIN
				return over || len(said) > 0
			}
			f.rest = append(f.rest, b[:n]...)
			for {
				line, rest, whole := bytes.Cut(f.rest, []byte("\n"))
				if !whole {
					break
				}
				f.rest = rest
				text := hide(string(line))
				if said = append(said, text); f.add(text) {
					fresh = append(fresh, text)
				}
			}
		}
	}
	if wait {
		err = conn.Read(take)
	} else {
		err = conn.Control(func(fd uintptr) { take(fd) })
	}
	return said, fresh, over || err != nil
}

// add notes a refusal. It reports whether the sink should hear of it.
func (f *refusals) add(text string) (fresh bool) {
	_, known := f.last[text]
	if len(f.last) >= maxRefusals || f.last == nil {
		f.last = map[string]time.Time{}
	}
	f.last[text] = time.Now()
	if fresh = !known && f.told < maxRefusals; fresh {
		f.told++
	}
	return fresh
}

// since returns what was refused from a time on, the latest last. It includes what was said a
// moment before, for that may have happened again.
func (f *refusals) since(at time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.SortedFunc(maps.Keys(f.last), func(a, b string) int { return f.last[a].Compare(f.last[b]) })
	all = slices.DeleteFunc(all, func(text string) bool { return f.last[text].Before(at.Add(-saidAgain)) })
	return all[max(0, len(all)-mostSaid):]
}

// latest returns what was refused last, "" for nothing.
func (f *refusals) latest() string {
	if all := f.since(time.Time{}); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// hearRefusals logs what the network has refused, and tells the sink what is new. The box must
// not be locked. It returns false when there is no more.
func (p *process) hearRefusals(wait bool) bool {
	f := &p.output.refused
	if f.from == nil {
		return false
	}
	said, fresh, over := f.hear(wait, p.box.hide.Text)
	for _, text := range said {
		p.output.log.Note("%s", text)
	}
	if len(fresh) > 0 {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		for _, text := range fresh {
			st := p.status(p.running(), nil)
			st.Detail = text
			log := p.logOf(st)
			p.group.speaker.tell(pendingOutput{call: func(k Sink) {
				log.Warn("process", "refused", text)
				k.Process(st)
			}})
		}
	}
	return !over
}

// hasFailed reports whether a response says that its request has failed.
func hasFailed(m wire.Message) bool {
	return m.Error != nil || bytes.Contains(m.Result, []byte(`"isError"`)) && string(wire.Lookup(m.Result, "isError")) == "true"
}

// withRefusals returns a response that says what the network refused while its request was in
// flight, if the request has failed: in the message of an error, or behind the content of a
// tool's answer.
func (p *process) withRefusals(r *request, m wire.Message) wire.Message {
	if p.output.refused.from == nil || !hasFailed(m) {
		return m
	}
	all := p.output.refused.since(r.before.at)
	if len(all) == 0 {
		return m
	}
	text := strings.Join(all, "; ")
	if m.Error != nil {
		if said, ok := wire.String(wire.Lookup(m.Error, "message")); ok {
			m.Error, _ = wire.Replace(m.Error, wire.AppendString(nil, said+"; "+text), "message")
		}
		return m
	}
	content := bytes.TrimSpace(wire.Lookup(m.Result, "content"))
	if len(content) < 2 || content[0] != '[' {
		return m
	}
	items := bytes.TrimSpace(content[1 : len(content)-1])
	if len(items) > 0 {
		items = append(slices.Clone(items), ',')
	}
	items = append(wire.AppendString(append(items, `{"type":"text","text":`...), text), '}')
	m.Result, _ = wire.Replace(m.Result, slices.Concat([]byte{'['}, items, []byte{']'}), "content")
	return m
}
