package relay_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// In this test two principals of each of two tenants use servers that are drawn at random.
// The host, relay function and runner are real. Each list that a client gets must be the
// one that its own process gives: the process that runs, or one that would start now. So
// no data of one principal reaches another, and no list is stale.

var neighbours = flag.Int("neighbours", 0, "how many random streets TestNeighbours plays; 0 is 300, fewer with -short or -race")

// habits are what a random server does.
type habits struct {
	Announces  bool // it declares listChanged, and keeps its word
	Keeps      bool // a session's changes survive its process, as they do in a workspace
	Personal   bool // the changes are kept for all sessions of the principal
	Greets     bool // its lists name the capabilities of its client
	SameLists  bool // record: "lists"; then no tool changes a list of tools
	Shared     bool // one process for all sessions of a tenant
	Initialize bool // its handshake is on record
}

// street is a world with a box for each tenant.
type street struct {
	healthy
	t      *testing.T
	habits habits
	rand   *rand.Rand
	store  storage.Store
	host   *sessions.Manager
	relay  *relayserver.Handler
	work   sync.WaitGroup
	lives  sync.WaitGroup

	mu    sync.Mutex
	boxes map[storage.BoxID]*house
	kept  map[string]map[string][]string // what survives, by whose process; by list
	wakes int
	tries map[string]int
}

// house is a box and its processes, which end with it.
type house struct {
	*street
	*inbound
	unasked
	runner    *runner.Runner
	processes map[string]map[string][]string // lists of each process that runs
	busy      int
	idle      time.Time
}

var listNames = map[string]string{
	wire.MethodToolsList: "tools", wire.MethodPromptsList: "prompts", wire.MethodResourcesList: "resources", wire.MethodResourceTemplatesList: "resourceTemplates",
}

func (h habits) handshake() string {
	return fmt.Sprintf(`{"protocolVersion":"2025-11-25","serverInfo":{"name":"s","version":"1"},"capabilities":{"tools":{"listChanged":%[1]t},"prompts":{"listChanged":%[1]t},"resources":{"listChanged":%[1]t}}}`, h.Announces)
}

func newStreet(t *testing.T, seed uint64) *street {
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
	draw := func() bool { return r.IntN(2) == 0 }
	s := &street{
		t: t, rand: r, store: storagetest.NewMemory(), boxes: map[storage.BoxID]*house{}, kept: map[string]map[string][]string{}, tries: map[string]int{},
		habits: habits{Announces: draw(), Keeps: draw(), Personal: draw(), Greets: draw(), SameLists: r.IntN(4) == 0, Shared: r.IntN(4) == 0, Initialize: draw()},
	}
	config := hostOver(t, s.store, s, s)
	s.host = sessions.New(s.store, relayserver.NewBackend(config), sessions.Limits{})
	s.relay = relayserver.NewHandler(config)
	if s.habits.Initialize {
		for _, tenant := range []string{"red", "blue"} {
			onRecord(t, s.store, tenant, s.habits.handshake())
		}
	}
	return s
}

// Run implements fleet.Fleet.
func (s *street) Run(ctx context.Context, t fleet.Task) (string, error) {
	h := &house{street: s, inbound: newInbound(), processes: map[string]map[string][]string{}, idle: time.Now()}
	config, err := runnerOf(t, h, func(context.Context, string, http.Header) (runner.Conn, error) { return h, nil })
	if err != nil {
		return "", err
	}
	h.runner = runner.New(config)
	s.mu.Lock()
	s.boxes[storage.BoxID(t.Box)] = h
	s.wakes++
	s.mu.Unlock()
	own := context.WithoutCancel(ctx)
	s.lives.Go(func() {
		_ = h.runner.Run(own)
		s.mu.Lock()
		defer s.mu.Unlock()
		h.processes = nil
	})
	return "task", nil
}

// Post implements relay.Poster: a connection has the name of its box.
func (s *street) Post(_ context.Context, conn string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.boxes[storage.BoxID(conn)]
	if h == nil {
		return storage.Errorf(storage.Closed, "simulated: gone")
	}
	h.in <- data
	return nil
}

func (h *house) Send(data []byte) error {
	h.work.Go(func() {
		f, err := frametest.Decode(data)
		if err != nil {
			panic(err)
		}
		reply, err := h.relay.Frame(context.Background(), string(f.Box), data)
		if err != nil {
			panic(err)
		}
		if reply != nil {
			h.in <- reply
		}
	})
	return nil
}

// place identifies the process that executes the messages of a session.
type place struct {
	tenant, principal string
	session           storage.ID
}

// process names the process of a session.
func (s *street) process(at place) string {
	if s.habits.Shared {
		return at.tenant
	}
	return string(at.session)
}

// heir returns the name of the session or principal for which a process keeps its changes.
func (s *street) heir(at place) string {
	if s.habits.Shared || !s.habits.Personal {
		return s.process(at)
	}
	return at.tenant + "/" + at.principal
}

// lists returns the lists of a session's process: the one that runs, or one that would
// start now. With start, that process has started and is remembered.
func (s *street) lists(at place, start bool) map[string][]string {
	h := s.boxes[storage.BoxFor(at.tenant, "s")]
	if h != nil && h.processes[s.process(at)] != nil {
		return h.processes[s.process(at)]
	}
	fresh := map[string][]string{}
	for _, name := range listNames {
		fresh[name] = append([]string{"base"}, s.kept[s.heir(at)][name]...)
	}
	if start {
		h.processes[s.process(at)] = fresh
	}
	return fresh
}

// told returns the answer of a process to a request for a list.
func (s *street) told(lists map[string][]string, method string, init json.RawMessage) string {
	names := slices.Clone(lists[listNames[method]])
	if s.habits.Greets && !s.habits.Shared {
		var has map[string]json.RawMessage
		_ = json.Unmarshal(wire.Lookup(init, "capabilities"), &has)
		names = append(names, strings.Join(slices.Sorted(maps.Keys(has)), "+"))
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = `{"name":` + strconv.Quote(n) + `}`
	}
	return `{"` + listNames[method] + `":[` + strings.Join(quoted, ",") + `]}`
}

// Deliver implements relay.Executor.
func (h *house) Deliver(d runner.Delivery) {
	m, err := wire.Parse(d.Raw)
	if err != nil {
		panic(err)
	}
	h.mu.Lock()
	h.busy++
	h.mu.Unlock()
	h.work.Go(func() {
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.busy--
			h.idle = time.Now()
		}()
		h.execute(d, m)
	})
}

func (h *house) execute(d runner.Delivery, m wire.Message) {
	at := place{textAt(d.Init, "tenant"), textAt(d.Init, "principal"), d.Session}
	h.mu.Lock()
	lists := h.lists(at, true)
	result, changed := `{}`, ""
	switch {
	case m.Method == wire.MethodInitialize:
		result = h.habits.handshake()
		h.runner.Status(runner.StatusReport{Session: d.Session, Ticket: d.Ticket, Detail: wire.V20251125, Handshake: json.RawMessage(result)})
	case listNames[m.Method] != "":
		result = h.told(lists, m.Method, d.Init)
	case m.Method == wire.MethodToolsCall:
		changed = h.change(at, lists, textAt(m.Params, "name"))
	}
	h.mu.Unlock()
	if changed != "" && h.habits.Announces {
		h.runner.Event(runner.Event{Session: d.Session, Ticket: d.Ticket, Raw: wire.NewNotification("notifications/"+changed+"/list_changed", nil)})
	}
	if m.Kind == wire.Request {
		h.runner.Event(runner.Event{Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Final: true, Raw: wire.ResultResponse(m.ID, json.RawMessage(result))})
	}
}

// change does what a call does: it adds the call's own name to a list.
func (s *street) change(at place, lists map[string][]string, name string) (kind string) {
	list, _, _ := strings.Cut(name, "-")
	lists[list] = append(lists[list], name)
	if s.habits.Keeps {
		heir := s.heir(at)
		if s.kept[heir] == nil {
			s.kept[heir] = map[string][]string{}
		}
		s.kept[heir][list] = append(s.kept[heir][list], name)
	}
	return strings.TrimSuffix(strings.ToLower(list), "templates") + map[bool]string{true: "s"}[list == "resourceTemplates"]
}

func (h *house) StopSession(id storage.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.processes, string(id))
}

func (h *house) IdleSince() (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.idle, h.busy == 0
}

func textAt(raw json.RawMessage, key string) string {
	s, _ := wire.String(wire.Lookup(raw, key))
	return s
}

// neighbour is a session of a principal.
type neighbour struct {
	caller sessions.Caller
	id     storage.ID
	init   json.RawMessage
}

func (s *street) caller(tenant, principal string, over storage.Transport) sessions.Caller {
	return sessions.Caller{
		Server: sessions.Server{
			Name: "s", Digest: "digest", Record: true, SameLists: s.habits.SameLists,
			Anonymous: !s.habits.Shared && !s.habits.Personal,
		},
		Tenant: tenant, Principal: principal, Transport: over,
	}
}

// arrive opens a session for a random principal.
func (s *street) arrive() neighbour {
	tenant, principal := []string{"red", "blue"}[s.rand.IntN(2)], []string{"ada", "bob"}[s.rand.IntN(2)]
	n := neighbour{caller: s.caller(tenant, principal, storage.HTTP)}
	abilities := []string{`{}`, `{"roots":{}}`}[s.rand.IntN(2)]
	n.init = json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":` + abilities + `,"tenant":"` + tenant + `","principal":"` + principal + `"}`)
	if s.rand.IntN(3) == 0 {
		n.caller.Transport = storage.Modern
		n.id = sessions.PinnedID(n.caller)
		return n
	}
	m := parse(s.t, string(wire.NewRequest(json.RawMessage("0"), wire.MethodInitialize, n.init)))
	opened, call, err := s.host.Initialize(s.t.Context(), n.caller, "", m)
	commontest.OK(s.t, err)
	finish(s.t, call)
	n.id = opened.ID
	s.accept(n, wire.NewNotification(wire.NotifyInitialized, nil))
	return n
}

func (s *street) accept(n neighbour, raw []byte) json.RawMessage {
	s.t.Helper()
	call, err := s.host.Accept(s.t.Context(), n.caller, n.id, []wire.Message{parse(s.t, string(raw))}, false)
	commontest.OK(s.t, err)
	return finish(s.t, call)
}

// ask sends a request and returns its result.
func (s *street) ask(n neighbour, method, params string) json.RawMessage {
	s.t.Helper()
	if n.caller.Transport != storage.Modern {
		return wire.Lookup(s.accept(n, wire.NewRequest(json.RawMessage("1"), method, json.RawMessage(params))), "result")
	}
	call, _, err := s.host.Send(s.t.Context(), n.caller, sessions.Client{Init: n.init}, method, json.RawMessage(params))
	commontest.OK(s.t, err)
	return wire.Lookup(finish(s.t, call), "result")
}

// list makes a client ask for a list, and compares the answer.
func (s *street) list(n neighbour) {
	method := slices.Sorted(maps.Keys(listNames))[s.rand.IntN(len(listNames))]
	init := n.init
	if pinned, _, err := s.store.Load(s.t.Context(), n.id, ""); err == nil {
		init = pinned.Init // the init of the first client of the pinned session
	}
	box, err := s.store.Box(s.t.Context(), storage.BoxFor(n.caller.Tenant, "s"))
	commontest.OK(s.t, err)
	s.mu.Lock()
	if box.State == storage.Asleep { // the runner may not have ended yet, but executes nothing
		delete(s.boxes, box.ID)
	}
	want := s.told(s.lists(place{n.caller.Tenant, n.caller.Principal, n.id}, false), method, init)
	before := s.wakes
	s.mu.Unlock()
	got := s.ask(n, method, `{}`)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries["lists"]++
	if s.wakes > before {
		s.tries["lists that woke a box"]++
	}
	if string(got) != want {
		s.t.Errorf("%+v: %s of %s/%s (%s): got %s, its own process says %s", s.habits, method, n.caller.Tenant, n.caller.Principal, n.caller.Transport, got, want)
	}
}

// call makes a client change a list of its own process.
func (s *street) call(n neighbour) {
	names := slices.Sorted(maps.Values(listNames))
	list := names[s.rand.IntN(len(names))]
	if s.habits.SameLists && (list == "tools" || list == "resourceTemplates") {
		list = "prompts"
	}
	s.tries["calls that change a list"]++
	s.ask(n, wire.MethodToolsCall, fmt.Sprintf(`{"name":"%s-of-%s-%s-%d"}`, list, n.caller.Tenant, n.caller.Principal, s.tries["calls that change a list"]))
}

// play has the neighbours do random things.
func (s *street) play(verbs int) {
	var all []neighbour
	for range verbs {
		if len(all) == 0 || s.rand.IntN(6) == 0 {
			all = append(all, s.arrive())
			s.tries["sessions"]++
			continue
		}
		switch n := all[s.rand.IntN(len(all))]; s.rand.IntN(6) {
		case 0, 1, 2:
			s.list(n)
		case 3:
			s.call(n)
		case 4:
			time.Sleep(time.Duration(s.rand.IntN(60)) * time.Second) // boxes stay awake
		case 5:
			time.Sleep(5 * time.Minute)
			s.tries["sleeps"]++
		}
	}
	time.Sleep(10 * time.Minute)
	s.lives.Wait()
	s.work.Wait()
}

// For a longer run: go test ./shared/backend/relay -run TestNeighbours -neighbours 5000
func TestNeighbours(t *testing.T) {
	tries := map[string]int{}
	n := *neighbours
	if n == 0 {
		n = fewer(300)
	}
	for seed := range n {
		synctest.Test(t, func(t *testing.T) {
			s := newStreet(t, uint64(seed)) //nolint:gosec // not negative
			s.play(60)
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
			for what, n := range s.tries {
				tries[what] += n
			}
			tries["wakes"] += s.wakes
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d streets: %v", n, tries)
	if from := tries["lists"] - tries["lists that woke a box"]; tries["calls that change a list"] == 0 || tries["sleeps"] == 0 || from < tries["lists"]/4 {
		t.Errorf("hardly anything was tried: %v", tries)
	}
}
