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

// RefusalsFile is the file descriptor on which the process of a server with [Server].Refusals
// reports connections that its network refuses. It writes a line of text for each one, before the
// server gets the error.
const RefusalsFile = 4

const (
	saidAgain   = time.Second // the network reports the same refusal at most once in this time
	maxRefusals = 64          // how many refusals of a process are kept, and how many the sink gets
	mostSaid    = 3           // how many refusals one error quotes
)

// refusals is a process's reports about refused connections. It has a lock of its own.
type refusals struct {
	from *os.File // nil if the process has no network that reports refusals

	mu   sync.Mutex
	rest []byte               // the beginning of a line that is not complete yet
	last map[string]time.Time // when each refusal was last reported, by its text without secrets
	told int                  // how many refusals the sink has got
}

// open makes a pipe, and returns the end for the process, which the caller closes.
func (f *refusals) open() (theirs *os.File, err error) {
	f.from, theirs, err = os.Pipe()
	return theirs, err
}

// close makes a waiting call of hear return.
func (f *refusals) close() {
	if f.from != nil {
		_ = f.from.Close() // nothing was written
	}
}

// hear returns the lines that were reported since the last call (said), and those of them that the
// sink should get (fresh). If no line has come and wait is true, hear waits for the next line. The
// result over is true if no more lines will come.
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

// add records a refusal, and reports whether the sink should get it.
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

// since returns the last refusals that were reported after a time, oldest first. It includes those
// of the second before, because the network does not repeat a report within a second.
func (f *refusals) since(at time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.SortedFunc(maps.Keys(f.last), func(a, b string) int { return f.last[a].Compare(f.last[b]) })
	all = slices.DeleteFunc(all, func(text string) bool { return f.last[text].Before(at.Add(-saidAgain)) })
	return all[max(0, len(all)-mostSaid):]
}

// hearRefusals logs what the network has refused, and passes what is new to the sink. The caller
// must not hold [Box].mu. hearRefusals returns false when no more refusals will come.
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

// withRefusals returns the response m to r. If m reports a failure, withRefusals adds what the
// network refused while r was in flight, at the end of the error message or of a tool's content.
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
