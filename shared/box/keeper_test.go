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
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// keeping names the variable that says how a fake keeper behaves, and for which build its
// images are.
const (
	keeperHow   = "FAKE_KEEPER"
	keeperBuild = "FAKE_KEEPER_BUILD"
)

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
	build := "1"
	if at := os.Getenv(keeperBuild); at != "" {
		text, _ := os.ReadFile(at)
		build = string(text)
	}
	say(`{"fit":{"build":"` + build + `","arch":"fake"}}`)
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
	t      *testing.T
	dir    string
	gen    int64
	tenant string
	log    *commontest.Lines
}

func newAsleep(t *testing.T) *asleep {
	t.Helper()
	return &asleep{t: t, dir: t.TempDir(), tenant: "t", log: &commontest.Lines{}}
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
	key, err := root.Tenant(a.tenant)
	commontest.OK(a.t, err)
	keeper := snapshot.NewKeeper(snapshot.Config{
		Store: snapshot.NewFolder(a.store()), Generation: a.gen, Key: func(owner string) string { return snapshot.Key("box", owner) },
	})
	gen := a.gen
	r := newRig(a.t, "kept", append([]func(*Server){func(s *Server) {
		s.Provisioner = &placing{a: a, gen: gen, places: map[string]string{}}
		s.Keeper, s.Images = keeper, &memory.Kept{Store: keeper.Images(), Key: key, Box: "box", Generation: gen}
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
