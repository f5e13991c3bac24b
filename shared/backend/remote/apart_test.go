package remote_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// speaker is an upstream of Streamable HTTP that speaks on the standalone stream of its
// session, as servers of the TypeScript SDK do.
type speaker struct {
	version string
	ids     bool             // events of the standalone stream have ids, and the stream can be resumed
	get     http.HandlerFunc // in the place of the standalone stream, nil: it serves it

	gets    atomic.Int64 // GET requests
	learned chan string  // answers about roots that have changed

	mu      sync.Mutex
	session int
	log     []spoken
	live    chan spoken // of the open standalone stream, nil: none is open
	open    *http.Request
	waits   map[string]chan wire.Message // for answers, by the id of the question
	asked   int
	quiet   map[string]chan struct{} // tools that wait until their channel is closed
	news    chan struct{}            // closed when the log grows
	over    context.Context          // ends with the test
}

// spoken is an event, with the stream that it belongs to: 0 for the standalone stream, and
// the number of its first event for that of a request.
type spoken struct {
	n, stream int
	raw       []byte
	last      bool
}

// says adds an event to the log. stream is -1 for a stream that begins.
func (s *speaker) says(stream int, raw []byte, last bool) spoken {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := spoken{len(s.log) + 1, stream, raw, last}
	if stream < 0 {
		e.stream = e.n
	}
	s.log = append(s.log, e)
	close(s.news)
	s.news = make(chan struct{})
	return e
}

func newSpeaker(t *testing.T, version string) *speaker {
	return &speaker{version: version, over: t.Context(), news: make(chan struct{}), learned: make(chan string, 10), waits: map[string]chan wire.Message{}, quiet: map[string]chan struct{}{}}
}

func (s *speaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		s.gets.Add(1)
		if s.get != nil {
			s.get(w, r)
			return
		}
		s.stream(w, r)
		return
	case http.MethodDelete:
		return
	}
	body, _ := io.ReadAll(r.Body)
	m, err := wire.Parse(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	known := s.session > 0 && r.Header.Get("Mcp-Session-Id") == fmt.Sprint("s", s.session)
	s.mu.Unlock()
	switch {
	case m.Method == "server/discover":
		http.Error(w, "Bad Request: no such method", http.StatusBadRequest)
	case m.Method == "initialize":
		s.mu.Lock()
		s.session++
		w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", s.session))
		s.mu.Unlock()
		s.reply(w, m, `{"protocolVersion":"`+s.version+`","capabilities":{"tools":{},"logging":{},"resources":{"subscribe":true},"extensions":{"com.example/tick":{}}},"serverInfo":{"name":"speaker","version":"1"}}`)
	case !known:
		http.Error(w, "session not found", http.StatusNotFound)
	case m.Kind == wire.Response:
		s.mu.Lock()
		wait := s.waits[string(m.ID)]
		delete(s.waits, string(m.ID))
		s.mu.Unlock()
		if wait != nil {
			wait <- m
		}
		w.WriteHeader(http.StatusAccepted)
	case m.Kind == wire.Notification:
		w.WriteHeader(http.StatusAccepted)
		if m.Method == wire.NotifyRootsChanged {
			ctx := context.WithoutCancel(r.Context())
			go func() { s.learned <- s.ask(ctx, wire.MethodRootsList, nil) }()
		}
	case m.Method == "tools/call":
		name, _ := wire.String(wire.Lookup(m.Params, "name"))
		if s.ids && s.version == "2025-11-25" { // the stream of the call can be resumed
			w.Header().Set("Content-Type", "text/event-stream")
			begun := s.says(-1, nil, false)
			s.send(w, begun)
			if name == "asks and ends" {
				question, answer := s.question(wire.MethodRootsList, nil)
				s.send(w, s.says(begun.stream, question, false))
				go func() { s.learned <- learn(s.over, answer) }()
			}
			result := s.call(s.over, name)
			s.send(w, s.says(begun.stream, wire.ResultResponse(m.ID, content(result)), true))
			return
		}
		if result := s.call(r.Context(), name); result != "" {
			s.reply(w, m, string(content(result)))
		}
	default:
		if m.Method == "com.example/tick" && s.listener() != nil {
			s.speak(wire.NewNotification("notifications/com.example/tick", json.RawMessage(`{"n":1.50}`)))
		}
		s.reply(w, m, "{}")
	}
}

func (s *speaker) reply(w http.ResponseWriter, m wire.Message, result string) {
	raw := wire.ResultResponse(m.ID, json.RawMessage(result))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}

func content(text string) json.RawMessage {
	return fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}]}`, text)
}

// send writes an event. A client that has gone gets it when it resumes the stream.
func (s *speaker) send(w http.ResponseWriter, e spoken) {
	event := wire.SSE{Data: e.raw}
	if s.ids {
		event.ID = fmt.Sprint(e.n)
	}
	_, _ = w.Write(wire.AppendSSE(nil, event))
	w.(http.Flusher).Flush()
}

// call runs a tool and returns its text, "" if the tool has no answer.
func (s *speaker) call(ctx context.Context, name string) string {
	s.mu.Lock()
	quiet := s.quiet[name]
	s.mu.Unlock()
	if quiet != nil {
		<-quiet
	}
	switch name {
	case "roots":
		return s.ask(ctx, "roots/list", nil)
	case "roots again":
		n := 0
		for strings.Contains(s.ask(ctx, wire.MethodRootsList, nil), "file:///srv/one") {
			n++
		}
		return fmt.Sprint(n)
	case "elicit":
		return s.ask(ctx, "elicitation/create", json.RawMessage(`{"message":"name","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}`))
	case "log":
		s.speak(wire.NewNotification(wire.NotifyMessage, json.RawMessage(`{"level":"info","data":"about to end"}`)))
	case "flood":
		for i := range 5000 {
			s.speak(wire.NewNotification(wire.NotifyMessage, fmt.Appendf(nil, `{"level":"info","data":%d}`, i)))
		}
	case "changes":
		for s.listener() != nil {
			s.speak(wire.NewNotification(wire.NotifyResourceUpdated, json.RawMessage(`{"uri":"file:///x"}`)))
		}
	}
	return "done"
}

// question makes a question. Its answer goes into the channel.
func (s *speaker) question(method string, params json.RawMessage) (raw []byte, answer chan wire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	id := json.RawMessage(fmt.Sprint(s.asked))
	answer = make(chan wire.Message, 1)
	s.waits[string(id)] = answer
	return wire.NewRequest(id, method, params), answer
}

func learn(ctx context.Context, answer chan wire.Message) string {
	select {
	case m := <-answer:
		if m.Error != nil {
			return "refused: " + string(m.Error)
		}
		return string(m.Result)
	case <-ctx.Done():
		return ""
	}
}

// ask sends a question on the standalone stream, and returns the client's answer.
func (s *speaker) ask(ctx context.Context, method string, params json.RawMessage) string {
	raw, answer := s.question(method, params)
	s.speak(raw)
	return learn(ctx, answer)
}

// speak sends a message on the standalone stream. If none is open, the message is lost,
// unless the stream can be resumed.
func (s *speaker) speak(raw []byte) {
	e := s.says(0, raw, false)
	s.mu.Lock()
	live, open := s.live, s.open
	s.mu.Unlock()
	if live != nil {
		select {
		case live <- e:
		case <-open.Context().Done():
		}
	}
}

// listener returns the request that holds the standalone stream open, nil if none does.
func (s *speaker) listener() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil || s.open.Context().Err() != nil {
		return nil
	}
	return s.open
}

// stream serves the standalone stream. Only one may be open.
func (s *speaker) stream(w http.ResponseWriter, r *http.Request) {
	var after int
	_, resumes := fmt.Sscan(r.Header.Get("Last-Event-ID"), &after)
	if resumes == nil && after > 0 && s.streamOf(after) > 0 {
		s.rest(w, r, after)
		return
	}
	var replay []spoken
	live := make(chan spoken)
	s.mu.Lock()
	if taken := s.live != nil && s.open.Context().Err() == nil; taken {
		s.mu.Unlock()
		http.Error(w, "Conflict: Only one SSE stream is allowed per session", http.StatusConflict)
		return
	}
	s.live, s.open = live, r
	if resumes == nil && s.ids {
		for _, e := range s.log[min(after, len(s.log)):] {
			if e.raw != nil && e.stream == 0 {
				replay = append(replay, e)
			}
		}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.live == live {
			s.live = nil
		}
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
	for _, e := range replay {
		s.send(w, e)
	}
	for {
		select {
		case e := <-live:
			s.send(w, e)
		case <-r.Context().Done():
			return
		}
	}
}

func (s *speaker) streamOf(event int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event > len(s.log) {
		return 0
	}
	return s.log[event-1].stream
}

// rest serves the stream of a request after an event.
func (s *speaker) rest(w http.ResponseWriter, r *http.Request, after int) {
	stream := s.streamOf(after)
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
	for {
		s.mu.Lock()
		left, news := s.log[after:], s.news
		s.mu.Unlock()
		for _, e := range left {
			if after = e.n; e.stream != stream {
				continue
			}
			if s.send(w, e); e.last {
				return
			}
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
	}
}

type person struct {
	client *mcp.Client
	logs   chan string
	asked  atomic.Int64 // elicitations
}

//nolint:staticcheck // roots and logging are part of what is tested, deprecated from 2026-07-28 or not
func newPerson() *person {
	p := &person{logs: make(chan string, 10_000)}
	p.client = mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			p.asked.Add(1)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{r.Params.Message: "my " + r.Params.Message}}, nil
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			p.logs <- fmt.Sprint(r.Params.Data)
		},
	})
	p.client.AddRoots(&mcp.Root{URI: "file:///srv/one", Name: "one"})
	return p
}

// joins connects the person. listens says that the client holds its own standalone stream.
func (p *person) joins(w *world, version string, listens bool) *mcp.ClientSession {
	w.t.Helper()
	s, err := p.client.Connect(w.t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url, DisableStandaloneSSE: !listens}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	commontest.OK(w.t, err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

func call(t *testing.T, s *mcp.ClientSession, tool string) string {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool})
	return text(t, r, err)
}

// Servers of the TypeScript SDK ask on the standalone stream of their session, unless they
// name the request. The question reaches the client in the call during which it is asked.
func TestServerAsksApartFromTheCall(t *testing.T) {
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		for _, client := range []string{"2025-11-25", "2026-07-28"} {
			for _, ids := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s for %s, ids %v", version, client, ids), func(t *testing.T) {
					t.Parallel()
					up := newSpeaker(t, version)
					up.ids = ids
					w := newWorld(t, storagetest.NewMemory(), up)
					if client == "2026-07-28" && (!ids || version != "2025-11-25") {
						w.warm = remote.New() // the question keeps the call open, in this process
					}
					p := newPerson()
					s := p.joins(w, client, false)
					for range 2 {
						commontest.Contains(t, "the server learned", "file:///srv/one", call(t, s, "roots"))
						commontest.Contains(t, "the server learned", `"name":"my name"`, call(t, s, "elicit"))
					}
					commontest.EqualIn(t, "the user was asked", 2, p.asked.Load())
				})
			}
		}
	}
}

// A client of 2026-07-28 is asked between rounds. If the stream of the call cannot be resumed
// and another process may have the next round, the question is refused, and the call goes on.
func TestQuestionApartCostsNoCallItsOutcome(t *testing.T) {
	w := newWorld(t, storagetest.NewMemory(), newSpeaker(t, "2025-11-25"))
	s := newPerson().joins(w, "2026-07-28", false)
	commontest.Contains(t, "the server learned", "refused: ", call(t, s, "roots"))
	commontest.Contains(t, "the server learned", `"cancel"`, call(t, s, "elicit"))
}

// A server may end a call before its question is answered. A legacy client gets the
// question nevertheless. For a modern client the server gets a refusal.
func TestQuestionOutlivesItsCall(t *testing.T) {
	for version, want := range map[string]string{"2025-11-25": "file:///srv/one", "2026-07-28": "refused: "} {
		t.Run(version, func(t *testing.T) {
			up := newSpeaker(t, "2025-11-25")
			up.ids = true
			w := newWorld(t, storagetest.NewMemory(), up)
			commontest.Equal(t, "done", call(t, newPerson().joins(w, version, false), "asks and ends"))
			commontest.Contains(t, "the server learned", want, <-up.learned)
		})
	}
}

// Messages that a server sends between two calls come with the next call, once.
func TestServerThatResumesLosesNothingBetweenCalls(t *testing.T) {
	onEachStore(t, func(t *testing.T, store storage.Store) {
		up := newSpeaker(t, "2025-11-25")
		up.ids = true
		w := newWorld(t, store, up)
		p := newPerson()
		s := p.joins(w, "2025-11-25", true)
		call(t, s, "log")
		<-p.logs
		up.speak(wire.NewNotification(wire.NotifyMessage, json.RawMessage(`{"level":"info","data":"between"}`)))
		up.quiet["log"] = make(chan struct{})
		go func() {
			commontest.Equal(t, "between", <-p.logs)
			close(up.quiet["log"])
		}()
		call(t, s, "log")
		commontest.Equal(t, "about to end", <-p.logs)
	})
}

// The request for the standalone stream follows no redirect to another origin, which
// would get the secrets.
func TestStandaloneStreamIsNotFollowedToAnotherOrigin(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	up := newSpeaker(t, "2025-11-25")
	up.get = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}
	w := newWorld(t, storagetest.NewMemory(), up)
	s := newPerson().joins(w, "2025-11-25", false)
	for range 2 {
		commontest.Equal(t, "done", call(t, s, "log"))
	}
	commontest.EqualIn(t, "another origin was asked", 0, elsewhere.Load())
}

// A server that floods its standalone stream has to wait for its reader. The call still
// ends, and the messages come in order.
func TestServerThatFloodsDoesNotStopTheCall(t *testing.T) {
	up := newSpeaker(t, "2025-11-25")
	w := newWorld(t, storagetest.NewMemory(), up)
	p := newPerson()
	s := p.joins(w, "2025-11-25", false)
	commontest.Equal(t, "done", call(t, s, "flood"))
	for i := range 100 {
		commontest.EqualIn(t, "message", fmt.Sprint(i), <-p.logs)
	}
}

// A server gets answers to 100 questions in a call. Later questions are refused.
func TestServerThatAsksWithoutEndIsRefused(t *testing.T) {
	w := newWorld(t, storagetest.NewMemory(), newSpeaker(t, "2025-11-25"))
	s := newPerson().joins(w, "2025-11-25", false)
	commontest.EqualIn(t, "the server was answered", "100", call(t, s, "roots again"))
}

// Each message outside of calls costs a write, so a request passes on only some hundreds.
func TestServerThatFloodsTheSessionIsNotHeardFurther(t *testing.T) {
	store := storagetest.NewMemory()
	up := newSpeaker(t, "2025-11-25")
	w := newWorld(t, store, up)
	s := newPerson().joins(w, "2025-11-25", false)
	commontest.Equal(t, "done", call(t, s, "changes"))
	tail, err := store.Tail(t.Context(), storage.ID(s.ID()), storage.Standalone)
	if err != nil || tail.Last != 501 {
		t.Errorf("%d messages are in the log: %v", tail.Last, err)
	}
}

// A client whose roots change tells the server, which asks for them outside of any call.
func TestServerLearnsThatRootsHaveChanged(t *testing.T) {
	up := newSpeaker(t, "2025-11-25")
	w := newWorld(t, storagetest.NewMemory(), up)
	p := newPerson()
	p.joins(w, "2025-11-25", true)
	p.client.AddRoots(&mcp.Root{URI: "file:///srv/two", Name: "two"}) //nolint:staticcheck // clients have them
	commontest.Contains(t, "the server learned", "file:///srv/two", <-up.learned)
}

// posts posts a message as a client of 2026-07-28, or of 2025-11-25 in a session. It
// returns the body of the answer and the session.
func (w *world) posts(method, message, in string) (answer, session string) {
	w.t.Helper()
	var headers []string
	switch {
	case in != "":
		headers = []string{wire.HeaderSessionID, in, wire.HeaderProtocolVersion, wire.V20251125}
	case method != wire.MethodInitialize:
		headers = []string{wire.HeaderMethod, method, wire.HeaderProtocolVersion, wire.V20260728}
	}
	answer, header := sent(w.t, post(w.t, w.url, message, headers...))
	return answer, header.Get(wire.HeaderSessionID)
}

// The standalone stream of the server is open while a request is there, if both ends declare
// extensions. Its notifications of extensions go to the standalone stream of the client.
func TestNotificationOfAnExtensionComesApartFromTheCall(t *testing.T) {
	store := storagetest.NewMemory()
	for capabilities, hears := range map[string]bool{`{"extensions":{"com.example/tick":{}}}`: true, `{}`: false} {
		up := newSpeaker(t, "2025-11-25")
		w := newWorld(t, store, up)
		answer, in := w.posts(wire.MethodInitialize, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"c","version":"1"}}}`, "")
		commontest.Contains(t, "initialize", `"extensions":{"com.example/tick":{}}`, answer)
		w.posts("", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, in)
		w.posts("", `{"jsonrpc":"2.0","id":1,"method":"com.example/tick"}`, in)
		tail, err := store.Tail(t.Context(), storage.ID(in), storage.Standalone)
		if err != nil || (tail.Last == 1) != hears || (up.gets.Load() == 1) != hears {
			t.Errorf("%s: %d messages apart, over %d streams, %v", capabilities, tail.Last, up.gets.Load(), err)
		}
	}
}
